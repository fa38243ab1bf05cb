//! One morning of a small shop: what a queue does when things go well, fail, and die.
//!
//! The queue is a file, with SQLite built into this program. Its clock is moved by hand, so that an hour takes no time; with
//! the clock of the machine nothing else would change.
#![allow(clippy::print_stdout, reason = "a program that shows something")]

use std::error::Error;
use std::time::Duration;

use leasehold_core::time::between;
use leasehold_core::{
    BatchSize, Dequeue, Explanation, Fate, HistoryFilter, Job, JobId, Json, NewJob, Queues, Redrive, Result,
    SettleOutcome, Store, StoreError, Verdict,
};
use leasehold_memory::{Clock, ManualClock};
use leasehold_sqlite::SqliteStore;

const LEASE: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("leasehold-quickstart-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let result = morning(&folder.join("jobs.db").to_string_lossy()).await;
    std::fs::remove_dir_all(&folder)?;
    result
}

async fn morning(path: &str) -> Result<(), Box<dyn Error>> {
    let clock = ManualClock::new("2026-11-16T09:00:00Z".parse()?);
    let hand = clock.clone();
    let store = SqliteStore::builder().clock(move || hand.now()).connect(path).await?;
    store.migrate().await?;
    println!("A queue in {path}\n");

    println!("1. Four jobs, one of them asked for twice");
    let reminder = enqueue(&store).await?;

    println!("\n2. A job that works");
    let receipt_mail = lease(&store, "mail", "ann").await?;
    settle(&store, &receipt_mail, Verdict::done_with("sent")?).await?;

    println!("\n3. A job that always fails: it waits, is tried again, and ends as a dead letter");
    let code = lease(&store, "sms", "ann").await?;
    settle(&store, &code, Verdict::retry("the carrier does not answer")).await?;
    clock.advance(Duration::from_secs(5));
    let code = lease(&store, "sms", "ann").await?;
    settle(&store, &code, Verdict::retry("the carrier does not answer")).await?;

    println!("\n4. A worker that dies: its lease passes, and somebody else does the work");
    let abandoned = lease(&store, "reports", "bob").await?;
    clock.advance(LEASE);
    for reclaimed in store.reclaim(BatchSize::MAX).await? {
        println!("   bob is not heard of; job {} goes back to its queue", reclaimed.id);
    }
    let taken_over = lease(&store, "reports", "cleo").await?;
    come_back_late(&store, &abandoned).await?;
    settle(&store, &taken_over, Verdict::done_with("12 pages")?).await?;

    println!("\n5. A job that is not running, and why");
    explain(&store, reminder).await?;
    explain(&store, code.id).await?;

    println!("\n6. The carrier is back: the dead letter gets another chance");
    let redriven = store.redrive(&Redrive::all(BatchSize::MAX)).await?;
    println!("   {} job is back in its queue", redriven.jobs.len());
    let code = lease(&store, "sms", "ann").await?;
    settle(&store, &code, Verdict::done()).await?;

    println!("\nWhat happened");
    print_history(&store).await?;
    println!("\nWhat is left");
    print_stats(&store).await?;
    Ok(())
}

/// Puts four jobs into three queues, and says which of them is the reminder.
async fn enqueue(store: &dyn Store) -> Result<JobId> {
    let receipt = NewJob::builder("mail", "receipt").payload(&"order 7").unique_key("order-7").build()?;
    let reminder = NewJob::builder("mail", "reminder").delay(Duration::from_secs(3600)).build()?;
    let code = NewJob::builder("sms", "code").payload(&"+44 20 7946 0000").max_attempts(2).build()?;
    let report = NewJob::builder("reports", "daily").build()?;

    let jobs = [receipt.clone(), receipt, reminder, code, report];
    let answers = store.enqueue(&jobs).await?;
    for (job, answer) in jobs.iter().zip(&answers) {
        let note = if answer.deduplicated { " (was there already)" } else { "" };
        println!("   job {}: {} in {}{note}", answer.id, job.kind(), job.queue());
    }
    Ok(answers[2].id)
}

/// Takes the next job of a queue.
async fn lease(store: &dyn Store, queue: &str, worker: &str) -> Result<Job> {
    let request = Dequeue::new(queue, worker)?.lease_for(LEASE)?;
    let job = store.dequeue(&request).await?.pop();
    let job = job.ok_or_else(|| StoreError::conflict(format!("nothing to do in {queue}")))?;
    println!(
        "   {worker} leases job {}, attempt {} of {}, receipt {}",
        job.id,
        job.attempts,
        job.max_attempts,
        job.receipt()
    );
    Ok(job)
}

/// Tells the store what is to become of a job, and the reader what became of it.
async fn settle(store: &dyn Store, job: &Job, verdict: Verdict) -> Result<()> {
    let now = store.now().await?;
    for outcome in store.settle(&[(job.receipt(), verdict)]).await? {
        let SettleOutcome::Settled(settled) = outcome else {
            return Err(StoreError::lease_lost("settle", job.receipt()));
        };
        match settled.fate() {
            Fate::Completed => println!("   job {} is done", job.id),
            Fate::Retrying { available_at } => {
                println!("   job {} failed; again in {:.1?}", job.id, between(now, available_at));
            }
            Fate::Snoozed { available_at } => println!("   job {} waits until {available_at}", job.id),
            Fate::DeadLettered => println!("   job {} failed for good: a dead letter", job.id),
            Fate::Discarded => println!("   job {} is not wanted any more", job.id),
        }
    }
    Ok(())
}

/// Bob was not dead, only slow. The job is no longer his, and the store says so.
async fn come_back_late(store: &dyn Store, job: &Job) -> Result<()> {
    match store.ack(&job.receipt(), Json::null()).await {
        Err(error) if error.is_lease_lost() => println!("   bob comes back and is refused: {error}"),
        Err(error) => return Err(error),
        Ok(_) => return Err(StoreError::conflict("a stale receipt was accepted")),
    }
    Ok(())
}

/// Asks the store why a job is not running.
async fn explain(store: &dyn Store, id: JobId) -> Result<()> {
    match store.explain(id).await? {
        Explanation::Scheduled { until } => {
            println!("   job {id} waits for its time, {}", until.format("%H:%M"));
        }
        Explanation::DeadLetter { error, .. } => println!("   job {id} is a dead letter: {error}"),
        other => println!("   job {id}: {other:?}"),
    }
    Ok(())
}

/// Every job that has ended.
async fn print_history(store: &dyn Store) -> Result<()> {
    println!(
        "   {:>3}  {:<8} {:<8} {:>8} {:>8}  {:<10} by",
        "job", "queue", "kind", "redrives", "attempts", "ended as"
    );
    for job in store.history(&HistoryFilter::default()).await?.items {
        let by = job.processed_by.as_ref().map_or("-", |worker| worker.as_str());
        let (queue, kind, status) = (job.queue.as_str(), job.kind.as_str(), job.outcome.status().as_str());
        let (id, redrives, attempts) = (job.id, job.redrives, job.attempts);
        println!("   {id:>3}  {queue:<8} {kind:<8} {redrives:>8} {attempts:>8}  {status:<10} {by}");
    }
    Ok(())
}

/// Every job that has not, counted by its state.
async fn print_stats(store: &dyn Store) -> Result<()> {
    for queue in store.stats(&Queues::named(["mail", "reports", "sms"])?).await? {
        let states = queue.states.iter().filter(|(_, count)| **count > 0);
        let states: Vec<_> = states.map(|(state, count)| format!("{count} {state}")).collect();
        let states = if states.is_empty() { "nothing".to_owned() } else { states.join(", ") };
        println!("   {:<8} {states}, {} dead letters", queue.queue.as_str(), queue.dead_letters);
    }
    Ok(())
}
