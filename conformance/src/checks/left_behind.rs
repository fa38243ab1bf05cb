//! A call that comes short leaves nothing behind: jobs that turn up below what a store has seen already, and racing calls.

use std::time::{Duration, Instant};

use leasehold_core::{Dequeue, Job, Queues, Store};

use super::race::{Rounds, at_once};
use super::scene::{handles, pattern, queues};
use crate::check::checks;
use crate::failure::{Outcome, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, ids, lease_for, new_job, request, request_named};

checks! { "left_behind":
    what_came_while_paused_comes_first_afterwards [D14, P1] needs Policies;
    a_late_commit_is_leased_by_the_next_call [D14] needs Transactions, ConcurrentWriters;
    a_late_commit_is_leased_beside_a_busy_queue [D14] needs Transactions, ConcurrentWriters;
    a_released_job_is_leased_by_the_next_call [D14];
    racing_calls_do_not_come_short [D14];
}

/// A store that remembers what it has seen needs some time and some calls to be sure of it.
const POLLED: Duration = Duration::from_millis(250);
const FEWEST: usize = 150;
const MOST: usize = 3000;

/// Asks again and again, as an idle worker does, with nothing to be had.
async fn poll(store: &dyn Store, request: &Dequeue) -> Outcome {
    let start = Instant::now();
    for call in 0..MOST {
        if call >= FEWEST && start.elapsed() > POLLED {
            break;
        }
        let jobs = store.dequeue(request).await?;
        ensure!(D1, jobs.is_empty(), "nothing is Ready, leased were {jobs:?}");
    }
    Ok(())
}

/// Leases twenty jobs of each of the queues, so that a store has something to remember.
async fn work_off(stage: &Stage, names: &[&str]) -> Outcome {
    for name in names {
        stage.enqueue_many(name, 20).await?;
        for _ in 0..4 {
            ensure_eq!(D13, "leased", stage.claim(name, 5).await?.len(), 5);
        }
    }
    Ok(())
}

/// By name, beside another name, and by a prefix.
fn ways() -> Outcome<[Dequeue; 3]> {
    Ok([request("q", 5)?, request_named(&["q", "other"], 5)?, request("q*", 5)?])
}

async fn what_came_while_paused_comes_first_afterwards(stage: Stage) -> Outcome {
    for request in ways()? {
        work_off(&stage, &["q"]).await?;
        stage.store.pause(&pattern("q")?).await?;
        let older = stage.enqueue(new_job("q")).await?;
        poll(&*stage.store, &request).await?;
        stage.store.resume(&pattern("q")?).await?;
        let newer = stage.enqueue(new_job("q")).await?;
        let leased = stage.store.dequeue(&request).await?;
        ensure_eq!(D14, "leased by the first call after resume", ids(&leased), [older, newer]);
    }
    Ok(())
}

async fn a_late_commit_is_leased_by_the_next_call(stage: Stage) -> Outcome {
    for request in ways()? {
        work_off(&stage, &["q"]).await?;
        let mut transaction = stage.begin().await?;
        let late = transaction.enqueue_in(&[new_job("q").build()?]).await?[0].id;
        poll(&*stage.store, &request).await?;
        transaction.commit().await?;
        let leased = stage.store.dequeue(&request).await?;
        ensure_eq!(D14, "leased by the first call after the commit", ids(&leased), [late]);
    }
    Ok(())
}

async fn a_late_commit_is_leased_beside_a_busy_queue(stage: Stage) -> Outcome {
    work_off(&stage, &["q", "busy"]).await?;
    let mut transaction = stage.begin().await?;
    let late = transaction.enqueue_in(&[new_job("q").build()?]).await?[0].id;
    poll(&*stage.store, &request("q", 5)?).await?;
    // Another set of queues is claimed from, on the same handle, much more often.
    poll(&*stage.store, &request_named(&["busy", "other"], 5)?).await?;
    let newer = stage.enqueue(new_job("q")).await?;
    let leased = stage.claim("q", 1).await?;
    ensure_eq!(D14, "leased before the commit", ids(&leased), [newer]);
    transaction.commit().await?;
    let leased = stage.claim("q", 5).await?;
    ensure_eq!(D14, "leased by the first call after the commit", ids(&leased), [late]);
    Ok(())
}

async fn a_released_job_is_leased_by_the_next_call(stage: Stage) -> Outcome {
    for request in ways()? {
        let held = stage.leased(new_job("q")).await?;
        poll(&*stage.store, &request).await?;
        stage.connect().await?.release(&[held.receipt()]).await?;
        let leased = stage.store.dequeue(&request).await?;
        ensure_eq!(D14, "leased by the first call after the release", ids(&leased), [held.id]);
    }
    Ok(())
}

/// Eight calls want ten jobs each, and there are forty for each of them: whatever the others have locked, enough is left.
async fn racing_calls_do_not_come_short(stage: Stage) -> Outcome {
    const CALLS: usize = 8;
    const WANTED: u32 = 10;
    let handles = handles(&stage, CALLS).await?;
    let mut rounds = Rounds::new(&stage);
    while let Some(round) = rounds.next() {
        let prefix = format!("{round}:");
        let names = [format!("{prefix}a"), format!("{prefix}b")];
        let ways = [
            Queues::named([names[0].as_str()])?,
            Queues::named(names.iter().map(String::as_str))?,
            queues(&format!("{prefix}*"))?,
        ];
        for way in ways {
            for name in &names {
                stage.enqueue_many(name, 4 * CALLS * WANTED as usize).await?;
            }
            let claimed = at_once(&handles, |_, store| {
                let way = way.clone();
                async move {
                    let request = Dequeue::new(way, "suite")?.limit(WANTED)?;
                    Ok(store.dequeue(&Dequeue { lease_for: lease_for(HOUR)?, ..request }).await?)
                }
            });
            let counts: Vec<usize> = claimed.await?.iter().map(|jobs: &Vec<Job>| jobs.len()).collect();
            let is_full = counts.iter().all(|count| *count == WANTED as usize);
            ensure!(
                D14,
                is_full,
                "{CALLS} racing calls for {WANTED} jobs of {way:?}, with enough for all, leased {counts:?}"
            );
        }
    }
    Ok(())
}
