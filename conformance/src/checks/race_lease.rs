//! Races for one lease: verdicts, reclaims, heartbeats and administrators.

use super::race::{Rounds, at_once, count_by_job};
use super::scene::handles;
use std::collections::BTreeMap;

use leasehold_core::{
    BatchSize, HeartbeatOutcome, Json, ReclaimFate, Reclaimed, Record, SettleOutcome, Verdict,
};

use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, lease_for, new_job, request};

checks! { "race":
    racing_verdicts_count_once [S11];
    racing_reclaims_count_once [R6];
    a_verdict_and_a_reclaim_do_not_both_count [R6, S11];
    a_heartbeat_and_a_reclaim_do_not_both_count [R6, H3];
    a_late_verdict_does_not_hit_the_next_lease [S2, R6];
    an_administrator_and_a_verdict_do_not_both_count [S2, A4, C1];
    a_heartbeat_does_not_hit_the_next_lease [H4, H1];
}

/// Whether the verdict counts. One that lost a race is answered LeaseLost, or Pending while the other has the lock.
fn is_settled(outcome: &SettleOutcome) -> bool {
    matches!(outcome, SettleOutcome::Settled(_))
}

async fn racing_verdicts_count_once(stage: Stage) -> Outcome {
    let handles = handles(&stage, 6).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let job = stage.leased(new_job(&format!("q{round}"))).await?;
        let answers = at_once(&handles, |index, store| {
            let receipt = job.receipt();
            async move {
                let verdict = match index % 3 {
                    0 => Verdict::done_with(&index)?,
                    1 => Verdict::snooze(HOUR)?,
                    _ => Verdict::retry_after(index, HOUR)?,
                };
                Ok(store.settle(&[(receipt, verdict)]).await?)
            }
        })
        .await?;
        let counted = answers.iter().flatten().filter(|outcome| is_settled(outcome)).count();
        ensure!(
            S11,
            counted == 1,
            "round {round}: {counted} of six verdicts for one receipt counted: {answers:?}"
        );
        let record = stage.record(job.id).await?;
        let attempts = match &record {
            Record::Live(job) => job.attempts,
            Record::Finished(job) => job.attempts,
        };
        ensure!(S11, attempts <= 1, "round {round}: the job is {record:?}");
    }
    Ok(())
}

async fn racing_reclaims_count_once(stage: Stage) -> Outcome {
    let handles = handles(&stage, 6).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let queue = format!("q{round}");
        for attempts in [1, 2, 1, 2, 1, 2] {
            stage.enqueue(new_job(&queue).max_attempts(attempts)).await?;
        }
        let leased = stage.claim(&queue, 10).await?;
        ensure_eq!(D13, "leased", leased.len(), 6);
        stage.age(2 * HOUR).await?;
        let answers =
            at_once(&handles, |_, store| async move { Ok(store.reclaim(BatchSize::new(4)?).await?) }).await?;
        let rest = stage.reclaim().await?;
        let all: Vec<Reclaimed> = answers.into_iter().flatten().chain(rest).collect();
        let counts = count_by_job(all.iter().map(|reclaimed| reclaimed.id));
        let twice: BTreeMap<_, _> = counts.iter().filter(|(_, count)| **count > 1).collect();
        ensure!(R6, twice.is_empty(), "round {round}, reclaimed more than once: {twice:?}");
        ensure_eq!(R6, format!("round {round}: reclaimed"), counts.len(), 6);
        let dead = all.iter().filter(|reclaimed| reclaimed.fate == ReclaimFate::DeadLettered).count();
        ensure_eq!(R6, format!("round {round}: dead letters"), dead, 3);
        for job in stage.claim(&queue, 10).await? {
            stage.settle(job.receipt(), Verdict::done()).await?;
        }
    }
    Ok(())
}

async fn a_verdict_and_a_reclaim_do_not_both_count(stage: Stage) -> Outcome {
    let handles = handles(&stage, 4).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let job = stage.leased(new_job(&format!("q{round}"))).await?;
        stage.age(2 * HOUR).await?;
        let answers = at_once(&handles, |index, store| {
            let receipt = job.receipt();
            async move {
                if index % 2 == 0 {
                    let outcomes = store.settle(&[(receipt, Verdict::done())]).await?;
                    Ok(outcomes.iter().filter(|outcome| is_settled(outcome)).count())
                } else {
                    let reclaimed = store.reclaim(BatchSize::MAX).await?;
                    Ok(reclaimed.iter().filter(|reclaimed| reclaimed.id == receipt.job).count())
                }
            }
        })
        .await?;
        let counted: usize = answers.iter().sum();
        ensure!(
            R6,
            counted == 1,
            "round {round}: verdicts and reclaims that counted for one lease: {answers:?}"
        );
        let settled = answers[0] + answers[2] == 1;
        let record = stage.record(job.id).await?;
        let finished = matches!(record, Record::Finished(_));
        ensure!(R6, finished == settled, "round {round}: answers {answers:?}, but the job is {record:?}");
    }
    Ok(())
}

async fn a_heartbeat_and_a_reclaim_do_not_both_count(stage: Stage) -> Outcome {
    let handles = handles(&stage, 4).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let job = stage.leased(new_job(&format!("q{round}"))).await?;
        // Some rounds on either side of the end of the lease.
        stage.age(if round % 2 == 0 { HOUR } else { HOUR / 2 }).await?;
        let answers = at_once(&handles, |index, store| {
            let receipt = job.receipt();
            async move {
                if index % 2 == 0 {
                    let answers = store.heartbeat(&[receipt], lease_for(5 * HOUR)?).await?;
                    let extended =
                        |answer: &HeartbeatOutcome| matches!(answer, HeartbeatOutcome::Extended { .. });
                    Ok((answers.iter().any(extended), false))
                } else {
                    let reclaimed = store.reclaim(BatchSize::MAX).await?;
                    Ok((false, reclaimed.iter().any(|reclaimed| reclaimed.id == receipt.job)))
                }
            }
        })
        .await?;
        let (extended, reclaimed) =
            (answers.iter().any(|answer| answer.0), answers.iter().any(|answer| answer.1));
        ensure!(R6, extended != reclaimed, "round {round}: extended {extended}, reclaimed {reclaimed}");
        let held = stage.live(job.id).await?.lease.is_some();
        ensure!(H3, held == extended, "round {round}: extended {extended}, but the job has a lease: {held}");
        stage.store.discard(job.id, Json::null()).await?;
    }
    Ok(())
}

async fn a_late_verdict_does_not_hit_the_next_lease(stage: Stage) -> Outcome {
    let handles = handles(&stage, 4).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let queue = format!("q{round}");
        let job = stage.leased(new_job(&queue)).await?;
        stage.age(2 * HOUR).await?;
        let answers = at_once(&handles, |index, store| {
            let (receipt, queue) = (job.receipt(), queue.clone());
            async move {
                if index % 2 == 0 {
                    let outcomes = store.settle(&[(receipt, Verdict::snooze(HOUR)?)]).await?;
                    return Ok((outcomes.iter().filter(|outcome| is_settled(outcome)).count(), None));
                }
                store.reclaim(BatchSize::MAX).await?;
                Ok((0, store.dequeue(&request(&queue, 1)?).await?.pop()))
            }
        })
        .await?;
        let settled: usize = answers.iter().map(|answer| answer.0).sum();
        let leased: Vec<_> = answers.into_iter().filter_map(|answer| answer.1).collect();
        ensure!(
            S2,
            settled + leased.len() <= 1,
            "round {round}: {settled} verdicts of the old lease counted beside the new leases {leased:?}"
        );
        for next in leased {
            let outcome = stage.try_settle(next.receipt(), Verdict::done()).await?;
            ensure!(
                S2,
                !outcome.is_lost(),
                "round {round}: the new holder's receipt was answered {outcome:?}"
            );
        }
    }
    Ok(())
}

async fn an_administrator_and_a_verdict_do_not_both_count(stage: Stage) -> Outcome {
    let handles = handles(&stage, 4).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let job = stage.leased(new_job(&format!("q{round}"))).await?;
        let answers = at_once(&handles, |index, store| {
            let receipt = job.receipt();
            async move {
                if index % 2 == 0 {
                    let outcomes = store.settle(&[(receipt, Verdict::done())]).await?;
                    return Ok((is_settled(&outcomes[0]), false));
                }
                match store.retry_later(receipt.job, leasehold_core::Schedule::after(HOUR)?).await {
                    Ok(()) => Ok((false, true)),
                    Err(leasehold_core::StoreError::Conflict { .. }) => Ok((false, false)),
                    Err(error) => Err(error.into()),
                }
            }
        })
        .await?;
        let settled = answers.iter().filter(|answer| answer.0).count();
        let sent_back = answers.iter().any(|answer| answer.1);
        ensure!(
            S2,
            settled + usize::from(sent_back) == 1,
            "round {round}: settled and sent back are {answers:?}"
        );
        let finished = matches!(stage.record(job.id).await?, Record::Finished(_));
        ensure_eq!(C1, format!("round {round}: the job is finished"), finished, settled == 1);
        let dump = stage.dump().await?;
        let places = dump.jobs.iter().map(|job| job.id).chain(dump.history.iter().map(|job| job.id));
        ensure_eq!(C1, "places in which the job is", places.filter(|id| *id == job.id).count(), 1);
        if !finished {
            stage.store.discard(job.id, Json::null()).await?;
        }
    }
    Ok(())
}

async fn a_heartbeat_does_not_hit_the_next_lease(stage: Stage) -> Outcome {
    let handles = handles(&stage, 4).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let queue = format!("q{round}");
        let job = stage.leased(new_job(&queue)).await?;
        let answers = at_once(&handles, |index, store| {
            let (receipt, queue) = (job.receipt(), queue.clone());
            async move {
                if index > 0 {
                    store.heartbeat(&[receipt], lease_for(9 * HOUR)?).await?;
                    return Ok(None);
                }
                store.release(&[receipt]).await?;
                Ok(store.dequeue(&request(&queue, 1)?).await?.pop())
            }
        })
        .await?;
        for next in answers.into_iter().flatten() {
            let seen = stage.live(next.id).await?;
            ensure_eq!(
                H4,
                format!("round {round}: the next lease, after the old holder's heartbeats"),
                seen,
                next
            );
        }
        stage.store.discard(job.id, Json::null()).await?;
    }
    Ok(())
}
