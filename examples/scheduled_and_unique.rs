//! Jobs for later, and jobs that are wanted only once.
#![allow(clippy::print_stdout, reason = "a program that shows something")]

use std::error::Error;
use std::time::Duration;

use leasehold::prelude::*;
use leasehold::testing::TestQueue;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Remind {
    whom: String,
}

impl JobKind for Remind {
    const KIND: &'static str = "remind";
}

async fn remind(remind: Remind, context: Context) {
    let now = context.job().updated_at;
    println!("   {}: {} is reminded", now.format("%d %B, %H:%M"), remind.whom);
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // A queue whose clock is moved by hand, so that a week takes no time.
    let queue = TestQueue::new();
    let store = queue.store();
    let worker = queue.worker().queue("reminders").handle::<Remind>(remind).test()?;

    println!("At any time of the next week");
    let at = queue.now() + Duration::from_secs(3 * 86_400);
    let jobs = [
        NewJob::of("reminders", &Remind { whom: "Ada, now".to_owned() }).build()?,
        NewJob::of("reminders", &Remind { whom: "Bob, in an hour".to_owned() })
            .delay(Duration::from_secs(3600))
            .build()?,
        NewJob::of("reminders", &Remind { whom: "Cleo, in three days".to_owned() }).at(at).build()?,
    ];
    store.enqueue(&jobs).await?;
    queue.run_to_end(&worker, Duration::from_secs(7 * 86_400)).await?;

    println!("\nHowever often it is asked for: once");
    let dora = || NewJob::of("reminders", &Remind { whom: "Dora".to_owned() }).unique_key("dora").build();
    for answer in store.enqueue(&[dora()?, dora()?, dora()?]).await? {
        println!("   job {}{}", answer.id, if answer.deduplicated { ": it is there already" } else { "" });
    }
    worker.drain().await?;

    println!("\nOnce it has ended, it may be asked for again");
    let answer = &store.enqueue(&[dora()?]).await?[0];
    println!("   job {}", answer.id);
    worker.drain().await?;
    Ok(())
}
