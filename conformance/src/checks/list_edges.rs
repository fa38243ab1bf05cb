//! Selections at the edges of names, states and filters.

use leasehold_core::{HistoryFilter, JobFilter, Queues, Verdict, WorkerId};

use super::scene::queues;
use crate::check::checks;
use crate::dump::{all_history, all_jobs};
use crate::failure::{Outcome, ensure_eq};
use crate::stage::{HOUR, Stage, ids, new_job, request};

checks! { "list":
    jobs_are_listed_by_worker [G2];
    no_state_and_no_status_list_nothing [G2, G3];
    a_prefix_reaches_to_the_last_name [G2, G3, Q3, D9];
}

async fn jobs_are_listed_by_worker(stage: Stage) -> Outcome {
    let mut leased = Vec::new();
    for worker in ["w", "W", "w2", "w"] {
        stage.enqueue(new_job("q")).await?;
        let request = leasehold_core::Dequeue::new("q", worker)?.lease_for(HOUR)?;
        leased.extend(ids(&stage.store.dequeue(&request).await?));
    }
    stage.enqueue(new_job("q")).await?;
    for (worker, wanted) in [("w", vec![0, 3]), ("W", vec![1]), ("w2", vec![2]), ("nobody", vec![])] {
        let filter = JobFilter { worker: Some(WorkerId::new(worker)?), ..JobFilter::default() };
        let wanted: Vec<_> = wanted.into_iter().map(|place: usize| leased[place]).collect();
        let listed = ids(&all_jobs(&*stage.store, filter.clone()).await?);
        ensure_eq!(G2, format!("leased to {worker}"), listed, wanted);
        let elsewhere = JobFilter { queues: queues("other")?, ..filter };
        let listed = ids(&all_jobs(&*stage.store, elsewhere).await?);
        ensure_eq!(G2, format!("leased to {worker} in another queue"), listed, []);
    }
    stage.age(2 * HOUR).await?;
    let filter = JobFilter { worker: Some(WorkerId::new("w2")?), ..JobFilter::default() };
    let listed = ids(&all_jobs(&*stage.store, filter.clone()).await?);
    ensure_eq!(G2, "whose lease by w2 has passed", listed, [leased[2]]);
    stage.reclaim().await?;
    let listed = ids(&all_jobs(&*stage.store, filter).await?);
    ensure_eq!(G2, "leased to w2 after a reclaim", listed, []);
    Ok(())
}

async fn no_state_and_no_status_list_nothing(stage: Stage) -> Outcome {
    stage.enqueue(new_job("q").delay(HOUR)).await?;
    let done = stage.leased(new_job("q")).await?;
    stage.settle(done.receipt(), Verdict::done()).await?;
    for name in ["q", "q*", "*"] {
        let filter = JobFilter { states: Some(Vec::new()), queues: queues(name)?, ..JobFilter::default() };
        let listed = ids(&all_jobs(&*stage.store, filter).await?);
        ensure_eq!(G2, format!("jobs of {name} in an empty list of states"), listed, []);
        let filter =
            HistoryFilter { statuses: Some(Vec::new()), queues: queues(name)?, ..HistoryFilter::default() };
        let listed = all_history(&*stage.store, filter).await?.len();
        ensure_eq!(G3, format!("finished jobs of {name} in an empty list of statuses"), listed, 0);
    }
    Ok(())
}

/// `~` is the last character that a name may have.
async fn a_prefix_reaches_to_the_last_name(stage: Stage) -> Outcome {
    let longest = format!("a~{}", "~".repeat(126));
    let names = ["a", "a~", "a~~", longest.as_str(), "b", "~", "~~"];
    for name in names {
        let job = stage.leased(new_job(name)).await?;
        stage.settle(job.receipt(), Verdict::done()).await?;
        stage.enqueue(new_job(name)).await?;
    }
    for prefix in ["a*", "a~*", "a~~*", "~*", "~~*", "*"] {
        let selection: Queues = queues(prefix)?;
        let mut wanted: Vec<_> =
            names.into_iter().filter(|name| name.starts_with(prefix.trim_end_matches('*'))).collect();
        wanted.sort_unstable();
        let sorted = |mut names: Vec<String>| {
            names.sort_unstable();
            names
        };
        let filter = JobFilter { queues: selection.clone(), ..JobFilter::default() };
        let jobs = all_jobs(&*stage.store, filter).await?;
        let listed = sorted(jobs.into_iter().map(|job| job.queue.to_string()).collect());
        ensure_eq!(G2, format!("queues of the jobs of {prefix}"), listed, wanted);
        let filter = HistoryFilter { queues: selection.clone(), ..HistoryFilter::default() };
        let rows = all_history(&*stage.store, filter).await?;
        let listed = sorted(rows.into_iter().map(|row| row.queue.to_string()).collect());
        ensure_eq!(G3, format!("queues of the finished jobs of {prefix}"), listed, wanted);
        let stats = stage.store.stats(&selection).await?;
        let counted: Vec<_> = stats.into_iter().map(|row| row.queue.to_string()).collect();
        ensure_eq!(Q3, format!("queues of the statistics of {prefix}"), counted, wanted);
        let jobs = stage.store.dequeue(&request(prefix, 100)?).await?;
        let leased = sorted(jobs.iter().map(|job| job.queue.to_string()).collect());
        ensure_eq!(D9, format!("queues of the jobs leased from {prefix}"), leased, wanted);
        stage.store.release(&jobs.iter().map(|job| job.receipt()).collect::<Vec<_>>()).await?;
    }
    Ok(())
}
