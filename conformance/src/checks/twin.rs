//! Live jobs whose ids finished ones have: one such job must not stop the others, and must itself end.

use leasehold_core::{BatchSize, HistoryFilter, Job, JobId, Json, ReclaimFate, Redrive, Verdict};

use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, ids, new_job};

checks! { "twin":
    verdicts_count_though_an_id_is_taken [C7, S1];
    a_reclaim_stops_at_no_id_that_is_taken [C7, R5];
    a_redrive_stops_at_no_id_that_is_taken [C7];
    an_administrators_word_counts_though_the_id_is_taken [C7, A2];
    a_transaction_settles_though_the_id_is_taken [C7, T2] needs Transactions;
}

/// How often a transaction is run again that the store has answered with an error that a caller may retry.
const TRIES: u32 = 3;

/// Four leased jobs, of which the second has the id of a dead letter.
async fn leased_with_a_twin(stage: &Stage, queue: &str) -> Outcome<Vec<Job>> {
    for _ in 0..4 {
        stage.enqueue(new_job(queue).max_attempts(1)).await?;
    }
    let jobs = stage.claim(queue, 4).await?;
    stage.finish_twin(jobs[1].id).await?;
    Ok(jobs)
}

async fn live(stage: &Stage) -> Outcome<Vec<JobId>> {
    Ok(ids(&stage.store.jobs(&Default::default()).await?.items))
}

async fn count_finished(stage: &Stage) -> Outcome<usize> {
    Ok(stage.store.history(&HistoryFilter::default()).await?.items.len())
}

async fn verdicts_count_though_an_id_is_taken(stage: Stage) -> Outcome {
    type Give = fn(usize) -> Verdict;
    let gives: [Give; 4] = [
        |_| Verdict::done(),
        |_| Verdict::dead("no"),
        |_| Verdict::discard("no"),
        |place| {
            let five = [Verdict::done(), Verdict::discard("a"), Verdict::dead("b"), Verdict::retry("last")];
            five[place % 4].clone()
        },
    ];
    for (round, give) in gives.iter().enumerate() {
        let jobs = leased_with_a_twin(&stage, "q").await?;
        let items: Vec<_> =
            jobs.iter().enumerate().map(|(place, job)| (job.receipt(), give(place))).collect();
        let outcomes = stage.store.settle(&items).await?;
        let is_settled = |outcome: &_| matches!(outcome, leasehold_core::SettleOutcome::Settled(_));
        ensure!(C7, outcomes.iter().all(is_settled), "round {round}: the outcomes are {outcomes:?}");
        ensure_eq!(C7, "the live jobs", live(&stage).await?, []);
        // Nothing of the history is lost.
        ensure_eq!(C7, "finished jobs", count_finished(&stage).await?, 5 * (round + 1));
    }
    // One job alone.
    let job = stage.leased(new_job("q")).await?;
    stage.finish_twin(job.id).await?;
    stage.settle(job.receipt(), Verdict::done()).await?;
    ensure_eq!(C7, "the live jobs", live(&stage).await?, []);
    Ok(())
}

async fn a_reclaim_stops_at_no_id_that_is_taken(stage: Stage) -> Outcome {
    let jobs = leased_with_a_twin(&stage, "q").await?;
    stage.age(2 * HOUR).await?;
    let reclaimed = stage.reclaim().await?;
    let dead = reclaimed.iter().filter(|reclaimed| reclaimed.fate == ReclaimFate::DeadLettered).count();
    ensure_eq!(C7, "jobs that were reclaimed as dead letters", dead, jobs.len());
    ensure_eq!(C7, "the live jobs", live(&stage).await?, []);
    ensure_eq!(C7, "finished jobs", count_finished(&stage).await?, 5);
    Ok(())
}

async fn a_redrive_stops_at_no_id_that_is_taken(stage: Stage) -> Outcome {
    let dead = stage.leased(new_job("q")).await?;
    let live = stage.leased(new_job("q").unique_key("live")).await?;
    stage.finish_twin(live.id).await?;
    let last = stage.leased(new_job("q").unique_key("last")).await?;
    for job in [&dead, &last] {
        stage.settle(job.receipt(), Verdict::dead("no")).await?;
    }
    let redriven = stage.store.redrive(&Redrive::all(BatchSize::MAX)).await?;
    for job in [&dead, &last] {
        ensure!(C7, redriven.jobs.contains(&job.id), "job {} was not redriven: {redriven:?}", job.id);
        stage.live(job.id).await?;
    }
    ensure_eq!(C7, "the job whose id a dead letter has", stage.live(live.id).await?, live);
    Ok(())
}

async fn an_administrators_word_counts_though_the_id_is_taken(stage: Stage) -> Outcome {
    let jobs = leased_with_a_twin(&stage, "q").await?;
    stage.store.discard(jobs[1].id, Json::null()).await?;
    ensure!(C7, !live(&stage).await?.contains(&jobs[1].id), "job {} was not discarded", jobs[1].id);
    ensure_eq!(C7, "finished jobs", count_finished(&stage).await?, 2);
    Ok(())
}

async fn a_transaction_settles_though_the_id_is_taken(stage: Stage) -> Outcome {
    for verdict in [Verdict::done(), Verdict::dead("no")] {
        let job = stage.leased(new_job("q")).await?;
        stage.finish_twin(job.id).await?;
        let mut settled = false;
        for _ in 0..TRIES {
            let mut transaction = stage.begin().await?;
            match transaction.settle_in(&job.receipt(), verdict.clone()).await {
                Ok(_settled) => {
                    transaction.commit().await.map_err(crate::failure::Problem::Harness)?;
                    settled = true;
                    break;
                }
                Err(error) if error.is_retryable() => transaction.rollback().await?,
                Err(error) => return Err(error.into()),
            }
        }
        ensure!(C7, settled, "a transaction with {verdict:?} was refused {TRIES} times");
        ensure_eq!(C7, "the live jobs", live(&stage).await?, []);
    }
    Ok(())
}
