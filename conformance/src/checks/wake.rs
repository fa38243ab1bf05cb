//! Hints to look now.

use std::time::Duration;

use futures_util::StreamExt;
use leasehold_core::{BatchSize, Json, QueuePolicy, Queues, Redrive, Schedule, Store, Verdict, Wakeups};

use super::scene::{at_most, dead_letter, fifo, pattern, queues, slow_rate};
use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, new_job};

checks! { "wake":
    a_new_job_wakes [W1] needs Wakeups;
    a_job_given_back_wakes [W1] needs Wakeups;
    a_reclaimed_job_wakes [W1] needs Wakeups;
    an_administrators_word_wakes [W1] needs Wakeups;
    a_redriven_job_wakes [W1] needs Wakeups;
    a_resumed_queue_wakes [W1] needs Wakeups, Policies;
    a_wider_limit_wakes [W1] needs Wakeups, ConcurrencyLimit;
    an_ended_lease_wakes_a_full_queue [W1] needs Wakeups, ConcurrencyLimit;
    an_ended_lease_wakes_a_fifo_queue [W1] needs Wakeups, Fifo;
    a_commit_wakes [W1] needs Wakeups, SharedWakeups, Transactions;
    another_handle_is_woken_too [W1] needs Wakeups, SharedWakeups;
    all_that_another_handle_does_wakes [W1] needs Wakeups, SharedWakeups, Policies;
    other_queues_of_another_handle_do_not_wake [W2] needs Wakeups, SharedWakeups;
    other_queues_do_not_wake [W2] needs Wakeups;
    every_wider_policy_wakes [W1] needs Wakeups, Policies, ConcurrencyLimit, RateLimit, Fifo;
    every_way_out_of_a_full_queue_wakes [W1] needs Wakeups, ConcurrencyLimit;
    a_first_job_that_goes_wakes_a_fifo_queue [W1] needs Wakeups, Fifo;
    an_end_in_a_transaction_wakes_a_full_queue [W1] needs Wakeups, SharedWakeups, ConcurrencyLimit, Transactions;
    a_batch_wakes_every_queue [W1] needs Wakeups;
    a_subscriber_is_woken_again_and_again [W1] needs Wakeups;
    a_batch_of_ends_wakes_a_full_queue [W1] needs Wakeups, ConcurrencyLimit;
}

/// How long a hint may take: a bound, not a wait.
const SOON: Duration = Duration::from_secs(10);
/// How long it must be quiet.
const QUIET: Duration = Duration::from_millis(200);

/// Subscribes, when what was done before has made its noise.
async fn listen(store: &dyn Store, queues: &Queues) -> Outcome<Wakeups> {
    let mut hints = store.wakeups(queues).await?;
    for _ in 0..50 {
        if !woken(&mut hints, QUIET / 4).await {
            return Ok(hints);
        }
    }
    ensure!(W2, false, "hints come and come while nothing is done");
    Ok(hints)
}

async fn woken(hints: &mut Wakeups, within: Duration) -> bool {
    matches!(tokio::time::timeout(within, hints.next()).await, Ok(Some(())))
}

async fn expect_hint(hints: &mut Wakeups, cause: &str) -> Outcome {
    ensure!(W1, woken(hints, SOON).await, "no hint within {SOON:?} after {cause}");
    Ok(())
}

async fn a_new_job_wakes(stage: Stage) -> Outcome {
    for selection in ["q", "q*", "*"] {
        let mut hints = listen(&*stage.store, &queues(selection)?).await?;
        stage.enqueue(new_job("q")).await?;
        expect_hint(&mut hints, &format!("enqueue, to a subscriber of {selection}")).await?;
    }
    let mut hints = listen(&*stage.store, &Queues::named(["a", "b"])?).await?;
    stage.enqueue(new_job("b")).await?;
    expect_hint(&mut hints, "enqueue into the second of two queues").await?;
    let mut hints = listen(&*stage.store, &queues("a")?).await?;
    let batch = [new_job("z").build()?, new_job("a").build()?, new_job("z").build()?];
    stage.store.enqueue(&batch).await?;
    expect_hint(&mut hints, "a batch for several queues").await
}

async fn a_job_given_back_wakes(stage: Stage) -> Outcome {
    for verdict in [Verdict::retry_after("no", Duration::ZERO)?, Verdict::snooze(Duration::ZERO)?] {
        let job = stage.leased(new_job("q")).await?;
        let mut hints = listen(&*stage.store, &queues("q")?).await?;
        stage.settle(job.receipt(), verdict.clone()).await?;
        expect_hint(&mut hints, &format!("{verdict:?}")).await?;
        stage.claim_one("q").await?;
    }
    let job = stage.leased(new_job("q")).await?;
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    stage.store.release(&[job.receipt()]).await?;
    expect_hint(&mut hints, "release").await
}

async fn a_reclaimed_job_wakes(stage: Stage) -> Outcome {
    stage.leased(new_job("q")).await?;
    stage.age(2 * HOUR).await?;
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    stage.reclaim().await?;
    expect_hint(&mut hints, "reclaim").await
}

async fn an_administrators_word_wakes(stage: Stage) -> Outcome {
    let id = stage.enqueue(new_job("q").delay(HOUR)).await?;
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    stage.store.promote(id).await?;
    expect_hint(&mut hints, "promote").await?;
    let job = stage.claim_one("q").await?;
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    stage.store.retry_later(job.id, Schedule::Now).await?;
    expect_hint(&mut hints, "retry_later now").await
}

async fn a_redriven_job_wakes(stage: Stage) -> Outcome {
    dead_letter(&stage, new_job("q"), "no").await?;
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    stage.store.redrive(&Redrive::all(BatchSize::MAX)).await?;
    expect_hint(&mut hints, "redrive").await
}

async fn a_resumed_queue_wakes(stage: Stage) -> Outcome {
    for name in ["q", "q*"] {
        stage.store.pause(&pattern(name)?).await?;
        stage.enqueue(new_job("q")).await?;
        let mut hints = listen(&*stage.store, &queues("q")?).await?;
        stage.store.resume(&pattern(name)?).await?;
        expect_hint(&mut hints, &format!("resume of {name}")).await?;
    }
    Ok(())
}

async fn a_wider_limit_wakes(stage: Stage) -> Outcome {
    stage.set_policy("q", at_most(1)?).await?;
    stage.enqueue_many("q", 2).await?;
    stage.claim_one("q").await?;
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    stage.set_policy("q", at_most(2)?).await?;
    expect_hint(&mut hints, "a higher limit").await
}

async fn an_ended_lease_wakes_a_full_queue(stage: Stage) -> Outcome {
    stage.set_policy("q", at_most(1)?).await?;
    expect_ends_to_wake(&stage).await
}

async fn an_ended_lease_wakes_a_fifo_queue(stage: Stage) -> Outcome {
    stage.set_policy("q", fifo()).await?;
    expect_ends_to_wake(&stage).await
}

async fn a_batch_of_ends_wakes_a_full_queue(stage: Stage) -> Outcome {
    stage.set_policy("q", at_most(3)?).await?;
    stage.enqueue_many("q", 30).await?;
    for verdict in
        [Verdict::done(), Verdict::done_with("result")?, Verdict::dead("no"), Verdict::discard("no")]
    {
        let jobs = stage.claim("q", 10).await?;
        let mut hints = listen(&*stage.store, &queues("q")?).await?;
        let items: Vec<_> = jobs.iter().map(|job| (job.receipt(), verdict.clone())).collect();
        stage.store.settle(&items).await?;
        expect_hint(&mut hints, &format!("{} times {verdict:?} freed every place", items.len())).await?;
    }
    Ok(())
}

/// Ends one lease after the other in a queue that has one at a time.
async fn expect_ends_to_wake(stage: &Stage) -> Outcome {
    stage.enqueue_many("q", 5).await?;
    for verdict in [Verdict::done(), Verdict::dead("no"), Verdict::discard("no")] {
        let job = stage.claim_one("q").await?;
        let mut hints = listen(&*stage.store, &queues("q")?).await?;
        stage.settle(job.receipt(), verdict.clone()).await?;
        expect_hint(&mut hints, &format!("{verdict:?} freed the only place")).await?;
    }
    let job = stage.claim_one("q").await?;
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    stage.store.discard(job.id, Json::null()).await?;
    expect_hint(&mut hints, "discard freed the only place").await
}

async fn a_commit_wakes(stage: Stage) -> Outcome {
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    let mut transaction = stage.begin().await?;
    transaction.enqueue_in(&[new_job("q").build()?]).await?;
    ensure!(W1, !woken(&mut hints, QUIET).await, "a hint came before the commit");
    transaction.commit().await?;
    expect_hint(&mut hints, "the commit of an enqueue").await?;
    let job = stage.claim_one("q").await?;
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    let mut transaction = stage.begin().await?;
    let retry = Verdict::retry_after("no", Duration::ZERO)?;
    let _proof = transaction.settle_in(&job.receipt(), retry).await?;
    transaction.commit().await?;
    expect_hint(&mut hints, "the commit of a retry").await
}

async fn another_handle_is_woken_too(stage: Stage) -> Outcome {
    let other = stage.connect().await?;
    let mut hints = listen(&*other, &queues("q")?).await?;
    let mut own = listen(&*stage.store, &queues("q")?).await?;
    stage.enqueue(new_job("q")).await?;
    expect_hint(&mut hints, "enqueue by another handle").await?;
    expect_hint(&mut own, "enqueue, with two subscribers").await
}

async fn all_that_another_handle_does_wakes(stage: Stage) -> Outcome {
    let other = stage.connect().await?;
    let deeds = ["retry", "release", "retry_later", "promote", "reclaim", "redrive", "resume"];
    for deed in deeds {
        let id = match deed {
            "promote" => stage.enqueue(new_job("q").delay(HOUR)).await?,
            "redrive" => dead_letter(&stage, new_job("q"), "no").await?,
            "resume" => {
                stage.store.pause(&pattern("q")?).await?;
                stage.enqueue(new_job("q")).await?
            }
            _ => stage.leased(new_job("q")).await?.id,
        };
        if deed == "reclaim" {
            stage.age(2 * HOUR).await?;
        }
        let mut hints = listen(&*other, &queues("q")?).await?;
        let receipt = stage.live(id).await.ok().map(|job| job.receipt());
        match (deed, receipt) {
            ("retry", Some(receipt)) => {
                stage.settle(receipt, Verdict::retry_after("no", Duration::ZERO)?).await?;
            }
            ("release", Some(receipt)) => drop(stage.store.release(&[receipt]).await?),
            ("retry_later", _) => stage.store.retry_later(id, Schedule::Now).await?,
            ("promote", _) => stage.store.promote(id).await?,
            ("redrive", _) => drop(stage.store.redrive(&Redrive::all(BatchSize::MAX)).await?),
            ("resume", _) => stage.store.resume(&pattern("q")?).await?,
            _ => drop(stage.reclaim().await?),
        }
        expect_hint(&mut hints, &format!("{deed} by another handle")).await?;
        let job = stage.claim_one("q").await?;
        stage.settle(job.receipt(), Verdict::done()).await?;
    }
    Ok(())
}

async fn other_queues_of_another_handle_do_not_wake(stage: Stage) -> Outcome {
    let other = stage.connect().await?;
    let mut exact = listen(&*other, &queues("a")?).await?;
    let mut prefix = listen(&*other, &queues("a:*")?).await?;
    for name in ["b", "ab", "A"] {
        let mut hints = listen(&*other, &queues(name)?).await?;
        stage.enqueue(new_job(name)).await?;
        expect_hint(&mut hints, &format!("enqueue into {name:?} by another handle")).await?;
    }
    let wrong = [woken(&mut exact, QUIET).await, woken(&mut prefix, QUIET).await];
    ensure!(
        W2,
        !wrong.contains(&true),
        "subscribers of a and of a:* were woken by another handle's jobs: {wrong:?}"
    );
    stage.enqueue(new_job("a")).await?;
    expect_hint(&mut exact, "enqueue into a by another handle").await
}

async fn other_queues_do_not_wake(stage: Stage) -> Outcome {
    let mut exact = listen(&*stage.store, &queues("a")?).await?;
    let mut prefix = listen(&*stage.store, &queues("a:*")?).await?;
    let mut named = listen(&*stage.store, &Queues::named(["a", "c"])?).await?;
    for name in ["b", "ab", "A", "a ", "A:1"] {
        let mut own = listen(&*stage.store, &queues(name)?).await?;
        stage.enqueue(new_job(name)).await?;
        expect_hint(&mut own, &format!("enqueue into {name:?}")).await?;
    }
    let wrong =
        [woken(&mut exact, QUIET).await, woken(&mut prefix, QUIET).await, woken(&mut named, QUIET).await];
    ensure!(
        W2,
        !wrong.contains(&true),
        "subscribers of a, of a:* and of a and c were woken by others: {wrong:?}"
    );
    stage.enqueue(new_job("a")).await?;
    expect_hint(&mut exact, "enqueue into a").await?;
    expect_hint(&mut named, "enqueue into a").await?;
    ensure!(W2, !woken(&mut prefix, QUIET).await, "a subscriber of a:* was woken by a");
    Ok(())
}

async fn every_wider_policy_wakes(stage: Stage) -> Outcome {
    let none = QueuePolicy::default;
    let rate = |burst| slow_rate(burst);
    let changes = [
        ("q", rate(1)?, rate(3)?, "a larger burst"),
        ("q", rate(1)?, none(), "no rate any more"),
        ("q*", rate(1)?, rate(3)?, "a larger burst of a prefix"),
        ("q", fifo(), none(), "no Fifo order any more"),
        ("q*", fifo(), none(), "no Fifo order of a prefix any more"),
        ("q", at_most(1)?, none(), "no limit any more"),
        ("q*", at_most(1)?, at_most(2)?, "a higher limit of a prefix"),
        ("*", at_most(1)?, at_most(2)?, "a higher limit of all queues"),
    ];
    for (name, narrow, wide, what) in changes {
        let stage = stage.fresh().await?;
        stage.set_policy(name, narrow).await?;
        stage.enqueue_many("q", 2).await?;
        stage.claim_one("q").await?;
        let held_back = stage.claim("q", 1).await?;
        ensure!(W1, held_back.is_empty(), "before {what} leased was {held_back:?}");
        let mut hints = listen(&*stage.store, &queues("q")?).await?;
        stage.set_policy(name, wide).await?;
        expect_hint(&mut hints, what).await?;
        stage.claim_one("q").await?;
    }
    Ok(())
}

async fn every_way_out_of_a_full_queue_wakes(stage: Stage) -> Outcome {
    stage.set_policy("q", at_most(1)?).await?;
    stage.enqueue_many("q", 9).await?;
    for way in ["retry", "snooze", "backoff", "retry_later", "late discard", "reclaim"] {
        let job = stage.claim_one("q").await?;
        if matches!(way, "late discard" | "reclaim") {
            stage.age(2 * HOUR).await?;
        }
        let mut hints = listen(&*stage.store, &queues("q")?).await?;
        match way {
            "retry" => stage.settle(job.receipt(), Verdict::retry_after("no", 99 * HOUR)?).await?,
            "snooze" => stage.settle(job.receipt(), Verdict::snooze(99 * HOUR)?).await?,
            "backoff" => stage.settle(job.receipt(), Verdict::retry("no")).await?,
            "retry_later" => stage.store.retry_later(job.id, Schedule::after(99 * HOUR)?).await?,
            "late discard" => stage.store.discard(job.id, Json::null()).await?,
            _ => drop(stage.reclaim().await?),
        }
        expect_hint(&mut hints, &format!("{way} freed the only place")).await?;
    }
    let last = stage.enqueue(new_job("q").max_attempts(1).priority(9)).await?;
    ensure_eq!(W1, "leased", stage.claim_one("q").await?.id, last);
    stage.age(2 * HOUR).await?;
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    stage.reclaim().await?;
    expect_hint(&mut hints, "a reclaim made a dead letter of the only leased job").await
}

async fn a_first_job_that_goes_wakes_a_fifo_queue(stage: Stage) -> Outcome {
    stage.set_policy("q", fifo()).await?;
    let first = stage.enqueue(new_job("q").delay(9 * HOUR)).await?;
    let second = stage.enqueue(new_job("q").max_attempts(1)).await?;
    let third = stage.enqueue(new_job("q")).await?;
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    stage.store.discard(first, Json::null()).await?;
    expect_hint(&mut hints, "the discard of a first job that waited").await?;
    ensure_eq!(W1, "leased", stage.claim_one("q").await?.id, second);
    stage.store.retry_later(second, Schedule::Now).await?;
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    stage.reclaim().await?;
    expect_hint(&mut hints, "the reclaim of an exhausted first job").await?;
    ensure_eq!(W1, "leased", stage.claim_one("q").await?.id, third);
    Ok(())
}

async fn an_end_in_a_transaction_wakes_a_full_queue(stage: Stage) -> Outcome {
    stage.set_policy("q", at_most(1)?).await?;
    stage.enqueue_many("q", 9).await?;
    for verdict in [Verdict::done(), Verdict::dead("no"), Verdict::retry_after("no", 9 * HOUR)?] {
        let job = stage.claim_one("q").await?;
        let mut transaction = stage.begin().await?;
        let _settled = transaction.settle_in(&job.receipt(), verdict.clone()).await?;
        let mut hints = listen(&*stage.store, &queues("q")?).await?;
        transaction.commit().await?;
        expect_hint(&mut hints, &format!("the commit of {verdict:?}")).await?;
    }
    Ok(())
}

async fn a_batch_wakes_every_queue(stage: Stage) -> Outcome {
    let names = ["a", "b", "c"];
    for what in ["settle", "release", "reclaim", "redrive", "commit"] {
        let stage = stage.fresh().await?;
        let capabilities = stage.store.capabilities();
        if what == "commit" && !(capabilities.transactions && capabilities.shared_wakeups) {
            continue;
        }
        let mut leased = Vec::new();
        for name in names.into_iter().filter(|_| what != "commit") {
            leased.push(stage.leased(new_job(name)).await?);
        }
        match what {
            "reclaim" => stage.age(2 * HOUR).await?,
            "redrive" => {
                for job in &leased {
                    stage.settle(job.receipt(), Verdict::dead("no")).await?;
                }
            }
            _ => {}
        }
        let mut hints = Vec::new();
        for name in names {
            hints.push((name, listen(&*stage.store, &queues(name)?).await?));
        }
        let receipts: Vec<_> = leased.iter().map(|job| job.receipt()).collect();
        match what {
            "settle" => {
                let retry = Verdict::retry_after("no", Duration::ZERO)?;
                let items: Vec<_> = receipts.iter().map(|receipt| (*receipt, retry.clone())).collect();
                stage.store.settle(&items).await?;
            }
            "release" => drop(stage.store.release(&receipts).await?),
            "reclaim" => drop(stage.reclaim().await?),
            "redrive" => drop(stage.store.redrive(&Redrive::all(BatchSize::MAX)).await?),
            _ => {
                let mut transaction = stage.begin().await?;
                for name in names {
                    transaction.enqueue_in(&[new_job(name).build()?]).await?;
                }
                transaction.commit().await?;
            }
        }
        for (name, hints) in &mut hints {
            expect_hint(hints, &format!("{what} of jobs of three queues, to a subscriber of {name}")).await?;
        }
    }
    Ok(())
}

async fn a_subscriber_is_woken_again_and_again(stage: Stage) -> Outcome {
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    for round in 0..5 {
        stage.enqueue(new_job("q")).await?;
        expect_hint(&mut hints, &format!("enqueue number {round}, with one subscription")).await?;
        for _ in 0..50 {
            if !woken(&mut hints, QUIET / 4).await {
                break;
            }
        }
    }
    Ok(())
}
