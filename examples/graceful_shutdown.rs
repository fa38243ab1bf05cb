//! A worker that is told to stop: what is short ends, what is long is given back, nothing is lost.
#![allow(clippy::print_stdout, reason = "a program that shows something")]

use std::error::Error;
use std::time::Duration;

use leasehold::prelude::*;
use leasehold::{HistoryFilter, JobFilter};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Brew {
    what: String,
    millis: u64,
}

impl JobKind for Brew {
    const KIND: &'static str = "brew";
}

async fn brew(brew: Brew, context: Context) -> Verdict {
    println!("   {} is on (attempt {})", brew.what, context.attempt());
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(brew.millis)) => {
            println!("   {} is ready", brew.what);
            Verdict::done()
        }
        // Whoever knows that he will not be done in time can give the job back himself.
        () = context.stopping(), if brew.millis > 10_000 => {
            println!("   {} is put aside", brew.what);
            Verdict::release()
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = leasehold::connect("memory:").await?;
    let brews = [("tea", 50), ("coffee", 150), ("stew", 5_000), ("beer", 86_400_000)];
    for (what, millis) in brews {
        let brew = Brew { what: what.to_owned(), millis };
        store.enqueue(&[NewJob::of("kitchen", &brew).build()?]).await?;
    }
    println!("Four pots");
    let worker = Worker::builder(store.clone()).queue("kitchen").handle::<Brew>(brew).start()?;
    while worker.stats().leased < 4 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    println!("\nThe kitchen closes: half a second for what is on");
    // In a program of its own: `worker.run_until_signal().await?`, and SIGTERM.
    let stopped = worker.shutdown(Duration::from_millis(500)).await?;
    println!("   {} pot was taken off", stopped.released);

    println!("\nWhat happened");
    let done = store.history(&HistoryFilter::default()).await?.items;
    for job in &done {
        println!("   {:<8} {}", job.payload.to::<Brew>()?.what, job.outcome.status());
    }
    let left = store.jobs(&JobFilter::default()).await?.items;
    for job in &left {
        println!(
            "   {:<8} is back in the queue, with {} attempts spent",
            job.payload.to::<Brew>()?.what,
            job.attempts
        );
    }
    if (done.len(), left.len()) != (2, 2) || left.iter().any(|job| job.attempts > 0) {
        return Err("something was lost".into());
    }
    Ok(())
}
