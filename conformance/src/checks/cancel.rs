//! Dropping a future at every await point.
//!
//! Each operation is begun on fresh jobs, polled once, twice, three times … and dropped, until it has had enough polls
//! to finish. After each drop every job must be as it was or as it should become, and the store fit for use.

use std::time::Duration;

use leasehold_core::{
    BatchSize, Epoch, Intervention, Job, JobFilter, JobId, Json, Prune, QueuePolicy, Record, Redrive, Store,
    Verdict,
};

use crate::cancel::cancelled_after;
use crate::check::checks;
use crate::dump::all_jobs;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, lease_for, new_job, queue, request};

checks! { "cancel":
    enqueue_is_all_or_nothing [C2, E1];
    enqueue_over_several_queues_is_all_or_nothing [C2, E1] needs AtomicBatches;
    enqueue_of_a_full_batch_is_all_or_nothing [C2, E1];
    dequeue_leases_whole_jobs [C2];
    settle_moves_whole_jobs [C2, C1];
    settle_of_a_batch_moves_whole_jobs [C2, C1];
    retry_and_snooze_change_whole_jobs [C2];
    heartbeat_extends_or_does_not [C2];
    reclaim_moves_whole_jobs [C2, C1];
    intervene_moves_whole_jobs [C2, C1];
    redrive_moves_whole_jobs [C2, C1];
    prune_forgets_whole_jobs [C2, C1];
    reads_leave_the_store_fit_for_use [C2];
    transactions_leave_nothing [C2, T8] needs Transactions;
    a_policy_that_is_replaced_is_left_whole [C2, P9] needs Policies;
}

/// No operation has more await points than this; one that never ends fails.
const MOST_POLLS: usize = 300;

/// How often an operation is asked for again: one that was dropped may still be under way in the database, and have its
/// rows locked until it has ended.
const PATIENCE: u32 = 10_000;

/// Whether an operation that was dropped after `polls` polls had finished, and what the caller must look at.
macro_rules! at_every_await_point {
    ($stage:ident, $polls:ident, $body:block) => {{
        let mut finished = false;
        for $polls in 0..MOST_POLLS {
            finished = $body;
            still_fit(&$stage, $polls).await?;
            if finished {
                break;
            }
        }
        ensure!(C2, finished, "the operation did not finish within {MOST_POLLS} polls");
        Ok(())
    }};
}

/// A whole life of a job on the same handle: a poisoned pool or a lock left behind would show.
async fn still_fit(stage: &Stage, polls: usize) -> Outcome {
    let name = format!("fit{polls}");
    let id = stage.enqueue(new_job(&name).unique_key("fit")).await?;
    let job = stage.claim_one(&name).await?;
    ensure_eq!(C2, "leased after the drop", job.id, id);
    stage.settle(job.receipt(), Verdict::done()).await?;
    stage.finished(id).await?;
    Ok(())
}

async fn enqueue_is_all_or_nothing(stage: Stage) -> Outcome {
    at_every_await_point!(stage, polls, {
        let name = format!("q{polls}");
        let jobs = (0..3)
            .map(|number| new_job(&name).unique_key(format!("k{number}")).payload(&number).build())
            .collect::<Result<Vec<_>, _>>()?;
        let answer = cancelled_after(stage.store.enqueue(&jobs), polls).await;
        let filter = JobFilter { queues: (&queue(&name)?).into(), ..JobFilter::default() };
        let there = all_jobs(&*stage.store, filter).await?.len();
        ensure!(
            E1,
            there == 0 || there == 3,
            "dropped after {polls} polls, {there} of a batch of 3 are there"
        );
        let again = stage.store.enqueue(&jobs).await?;
        let fresh = again.iter().filter(|answer| !answer.deduplicated).count();
        ensure!(C2, fresh == 0 || fresh == 3, "enqueued again after {polls} polls: {again:?}");
        answer.is_some()
    })
}

async fn enqueue_over_several_queues_is_all_or_nothing(stage: Stage) -> Outcome {
    at_every_await_point!(stage, polls, {
        let queues = [format!("a{polls}"), format!("b{polls}"), format!("c{polls}")];
        let jobs = queues.iter().map(|name| new_job(name).build()).collect::<Result<Vec<_>, _>>()?;
        let answer = cancelled_after(stage.store.enqueue(&jobs), polls).await;
        let names = leasehold_core::Queues::named(queues.iter().map(String::as_str))?;
        let there = all_jobs(&*stage.store, JobFilter { queues: names, ..JobFilter::default() }).await?.len();
        ensure!(
            E1,
            there == 0 || there == 3,
            "dropped after {polls} polls, {there} of a batch of 3 are there"
        );
        answer.is_some()
    })
}

/// A store that cuts a large batch into steps has more await points, so that fewer of them are tried.
async fn enqueue_of_a_full_batch_is_all_or_nothing(stage: Stage) -> Outcome {
    let full = 10_000;
    let mut polls = 1;
    loop {
        let name = format!("q{polls}");
        let jobs = (0..full).map(|_| new_job(&name).build()).collect::<Result<Vec<_>, _>>()?;
        let answer = cancelled_after(stage.store.enqueue(&jobs), polls).await;
        let stats = stage.store.stats(&(&queue(&name)?).into()).await?;
        let there: u64 = stats.iter().map(leasehold_core::QueueStats::live).sum();
        ensure!(
            E1,
            there == 0 || there == full,
            "dropped after {polls} polls, {there} of a batch of {full} are there"
        );
        if answer.is_some() {
            return Ok(());
        }
        ensure!(C2, polls < 100_000, "the batch was not accepted within {polls} polls");
        polls *= 2;
    }
}

async fn dequeue_leases_whole_jobs(stage: Stage) -> Outcome {
    at_every_await_point!(stage, polls, {
        let name = format!("q{polls}");
        let ids = stage.enqueue_many(&name, 3).await?;
        let request = request(&name, 3)?;
        let answer = cancelled_after(stage.store.dequeue(&request), polls).await;
        for id in &ids {
            let job = stage.live(*id).await?;
            let whole = match &job.lease {
                Some(_) => job.attempts == 1 && job.epoch > Epoch::ZERO && job.first_leased_at.is_some(),
                None => (job.attempts, job.epoch.get()) == (0, 0) && job.first_leased_at.is_none(),
            };
            ensure!(C2, whole, "dequeue dropped after {polls} polls left {job:?}");
        }
        answer.is_some()
    })
}

/// The job is untouched, or it is finished: nothing else.
async fn untouched_or_finished(stage: &Stage, before: &Job, polls: usize) -> Outcome {
    match stage.store.get(before.id).await? {
        Some(Record::Live(now)) => {
            ensure!(C2, now == *before, "dropped after {polls} polls, {before:?} became {now:?}");
            // Then it must not be in the history too; a second settle shows. What was dropped may be under way in the
            // database and come first: then the job has ended by that.
            let outcome = stage.try_settle(before.receipt(), Verdict::done()).await?;
            let rows = stage.finished(before.id).await;
            ensure!(C1, rows.is_ok(), "the job was live, but could not be ended: {outcome:?}");
        }
        Some(Record::Finished(_)) => {
            let filter = JobFilter { queues: (&before.queue).into(), ..JobFilter::default() };
            let live: Vec<JobId> = all_jobs(&*stage.store, filter).await?.iter().map(|job| job.id).collect();
            ensure!(
                C1,
                !live.contains(&before.id),
                "dropped after {polls} polls, job {} is in both places",
                before.id
            );
        }
        None => ensure!(C1, false, "dropped after {polls} polls, job {} is nowhere", before.id),
    }
    Ok(())
}

async fn settle_moves_whole_jobs(stage: Stage) -> Outcome {
    for verdict in [Verdict::done(), Verdict::dead("no"), Verdict::discard("no"), Verdict::retry("last")] {
        let stage = stage.fresh().await?;
        let settled: Outcome = at_every_await_point!(stage, polls, {
            let job = stage.leased(new_job(&format!("q{polls}")).max_attempts(1)).await?;
            let items = [(job.receipt(), verdict.clone())];
            let answer = cancelled_after(stage.store.settle(&items), polls).await;
            untouched_or_finished(&stage, &job, polls).await?;
            answer.is_some()
        });
        settled?;
    }
    Ok(())
}

async fn settle_of_a_batch_moves_whole_jobs(stage: Stage) -> Outcome {
    at_every_await_point!(stage, polls, {
        let name = format!("q{polls}");
        stage.enqueue_many(&name, 4).await?;
        let jobs = stage.claim(&name, 4).await?;
        let items: Vec<_> = jobs.iter().map(|job| (job.receipt(), Verdict::done())).collect();
        let answer = cancelled_after(stage.store.settle(&items), polls).await;
        for job in &jobs {
            untouched_or_finished(&stage, job, polls).await?;
        }
        answer.is_some()
    })
}

async fn retry_and_snooze_change_whole_jobs(stage: Stage) -> Outcome {
    at_every_await_point!(stage, polls, {
        let name = format!("q{polls}");
        stage.enqueue_many(&name, 2).await?;
        let jobs = stage.claim(&name, 2).await?;
        let items = [
            (jobs[0].receipt(), Verdict::retry_after("again", HOUR)?),
            (jobs[1].receipt(), Verdict::snooze(HOUR)?),
        ];
        let answer = cancelled_after(stage.store.settle(&items), polls).await;
        for (job, attempts) in jobs.iter().zip([1, 0]) {
            let now = stage.live(job.id).await?;
            let whole = now == *job
                || (now.lease.is_none() && now.attempts == attempts && now.available_at > job.available_at);
            ensure!(C2, whole, "dropped after {polls} polls, {job:?} became {now:?}");
        }
        answer.is_some()
    })
}

async fn heartbeat_extends_or_does_not(stage: Stage) -> Outcome {
    at_every_await_point!(stage, polls, {
        let job = stage.leased(new_job(&format!("q{polls}"))).await?;
        let receipts = [job.receipt()];
        let answer = cancelled_after(stage.store.heartbeat(&receipts, lease_for(2 * HOUR)?), polls).await;
        let now = stage.live(job.id).await?;
        let expected = Job { lease: now.lease.clone(), updated_at: now.updated_at, ..job.clone() };
        ensure!(
            C2,
            now == expected && now.lease.is_some(),
            "dropped after {polls} polls, {job:?} became {now:?}"
        );
        stage.settle(job.receipt(), Verdict::done()).await?;
        answer.is_some()
    })
}

async fn reclaim_moves_whole_jobs(stage: Stage) -> Outcome {
    at_every_await_point!(stage, polls, {
        let name = format!("q{polls}");
        for attempts in [1, 2] {
            stage.enqueue(new_job(&name).max_attempts(attempts)).await?;
        }
        let jobs = stage.claim(&name, 2).await?;
        stage.age(2 * HOUR).await?;
        let jobs = [stage.live(jobs[0].id).await?, stage.live(jobs[1].id).await?];
        let answer = cancelled_after(stage.store.reclaim(BatchSize::MAX), polls).await;
        if let Some(Record::Live(now)) = stage.store.get(jobs[1].id).await? {
            let whole =
                now == jobs[1] || (now.lease.is_none() && now.attempts == 1 && now.last_error.is_some());
            ensure!(C2, whole, "reclaim dropped after {polls} polls made {now:?} of {:?}", jobs[1]);
        } else {
            ensure!(C1, false, "reclaim dropped after {polls} polls: job {} is not in the queue", jobs[1].id);
        }
        for _ in 0..PATIENCE {
            stage.reclaim().await?;
            if matches!(stage.record(jobs[0].id).await?, Record::Finished(_)) {
                break;
            }
        }
        stage.finished(jobs[0].id).await?;
        stage.live(jobs[1].id).await?;
        stage.store.discard(jobs[1].id, Json::null()).await?;
        answer.is_some()
    })
}

async fn intervene_moves_whole_jobs(stage: Stage) -> Outcome {
    at_every_await_point!(stage, polls, {
        let job = stage.leased(new_job(&format!("q{polls}"))).await?;
        let discard = Intervention::Discard { reason: Json::null() };
        let answer = cancelled_after(stage.store.intervene(job.id, &discard), polls).await;
        untouched_or_finished(&stage, &job, polls).await?;
        answer.is_some()
    })
}

async fn redrive_moves_whole_jobs(stage: Stage) -> Outcome {
    at_every_await_point!(stage, polls, {
        let name = format!("q{polls}");
        let job = stage.leased(new_job(&name).unique_key("k")).await?;
        stage.settle(job.receipt(), Verdict::dead("no")).await?;
        let request = Redrive { queues: (&job.queue).into(), ..Redrive::all(BatchSize::MAX) };
        let answer = cancelled_after(stage.store.redrive(&request), polls).await;
        let record = stage.store.get(job.id).await?;
        ensure!(C1, record.is_some(), "redrive dropped after {polls} polls: job {} is nowhere", job.id);
        for _ in 0..PATIENCE {
            stage.store.redrive(&request).await?;
            if matches!(stage.record(job.id).await?, Record::Live(_)) {
                break;
            }
        }
        let again = stage.claim_one(&name).await?;
        ensure!(
            C2,
            again.id == job.id && again.epoch > job.epoch,
            "after a dropped redrive {again:?} was leased"
        );
        stage.settle(again.receipt(), Verdict::done()).await?;
        stage.finished(job.id).await?;
        answer.is_some()
    })
}

async fn prune_forgets_whole_jobs(stage: Stage) -> Outcome {
    at_every_await_point!(stage, polls, {
        let job = stage.leased(new_job("q")).await?;
        stage.settle(job.receipt(), Verdict::done()).await?;
        let kept = stage.leased(new_job("kept")).await?;
        let all = Prune::older_than(Duration::ZERO, BatchSize::MAX)?;
        let answer = cancelled_after(stage.store.prune(&all), polls).await;
        if let Some(Record::Live(job)) = stage.store.get(job.id).await? {
            ensure!(C1, false, "prune dropped after {polls} polls brought back {job:?}");
        }
        for _ in 0..PATIENCE {
            stage.store.prune(&all).await?;
            if stage.store.get(job.id).await?.is_none() {
                break;
            }
        }
        let left = stage.store.get(job.id).await?;
        ensure!(C2, left.is_none(), "pruned again after a drop at {polls} polls, but there is {left:?}");
        ensure_eq!(C2, "a live job beside it", stage.live(kept.id).await?, kept);
        stage.store.discard(kept.id, Json::null()).await?;
        answer.is_some()
    })
}

async fn reads_leave_the_store_fit_for_use(stage: Stage) -> Outcome {
    let id = stage.enqueue(new_job("q")).await?;
    at_every_await_point!(stage, polls, {
        let all = leasehold_core::Queues::all();
        let reads = async {
            read_everything(&*stage.store, id, &all).await?;
            Outcome::Ok(())
        };
        match cancelled_after(reads, polls).await {
            Some(outcome) => {
                outcome?;
                true
            }
            None => false,
        }
    })
}

async fn read_everything(store: &dyn Store, id: JobId, all: &leasehold_core::Queues) -> Outcome {
    store.get(id).await?;
    store.jobs(&JobFilter::default()).await?;
    store.history(&leasehold_core::HistoryFilter::default()).await?;
    store.stats(all).await?;
    store.explain(id).await?;
    store.next_available_at(all).await?;
    Ok(())
}

async fn transactions_leave_nothing(stage: Stage) -> Outcome {
    at_every_await_point!(stage, polls, {
        let job = stage.leased(new_job(&format!("q{polls}"))).await?;
        let new = [new_job("tx").unique_key("tx").build()?];
        let work = async {
            let mut transaction = stage.begin().await?;
            transaction.write("effect").await?;
            transaction.enqueue_in(&new).await?;
            let _dropped = transaction.settle_in(&job.receipt(), Verdict::done_with("dropped")?).await?;
            Outcome::Ok(transaction)
        };
        let answer = match cancelled_after(work, polls).await {
            Some(Ok(transaction)) => {
                drop(transaction);
                true
            }
            Some(Err(problem)) => return Err(problem),
            None => false,
        };
        untouched_or_finished(&stage, &job, polls).await?;
        // `untouched_or_finished` has settled it with `null`; a verdict that was not dropped would have been first.
        let result = stage.finished(job.id).await?.outcome.document().clone();
        ensure_eq!(T8, format!("result after a drop at {polls} polls"), result, Json::null());
        let ledger = stage.ledger().await?;
        ensure!(T8, ledger.is_empty(), "dropped after {polls} polls, the ledger has {ledger:?}");
        let left =
            all_jobs(&*stage.store, JobFilter { queues: (&queue("tx")?).into(), ..JobFilter::default() })
                .await?;
        ensure!(
            T8,
            left.is_empty(),
            "dropped after {polls} polls, a job of the transaction is there: {left:?}"
        );
        answer
    })
}

async fn a_policy_that_is_replaced_is_left_whole(stage: Stage) -> Outcome {
    let attempts = |attempts: usize| -> Outcome<QueuePolicy> {
        let max_attempts = Some(leasehold_core::MaxAttempts::new(1 + attempts as u32)?);
        Ok(QueuePolicy { max_attempts, ..QueuePolicy::default() })
    };
    at_every_await_point!(stage, polls, {
        let pattern = "p".parse()?;
        // There is something to lose, and it is another one than that which comes.
        let (before, policy) = (attempts(2 * polls)?, attempts(2 * polls + 1)?);
        stage.store.set_policy(&pattern, &before).await?;
        let answer = cancelled_after(stage.store.set_policy(&pattern, &policy), polls).await;
        let after = stage.store.policies().await?.set_for(&pattern);
        ensure!(
            C2,
            after == before || after == policy,
            "set_policy dropped after {polls} polls left {after:?}"
        );
        answer.is_some()
    })
}
