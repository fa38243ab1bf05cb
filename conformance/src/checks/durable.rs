//! What is left when nobody has the store open.

use leasehold_core::{JobState, MaxAttempts, QueuePolicy, Verdict};

use super::scene::{dead_letter, every_state};
use crate::check::checks;
use crate::failure::{Outcome, ensure};
use crate::stage::{Stage, new_job};

checks! { "durable":
    everything_is_there_when_the_last_handle_was_closed [C6] needs Durable;
}

async fn everything_is_there_when_the_last_handle_was_closed(stage: Stage) -> Outcome {
    every_state(&stage, ["a", "b"]).await?;
    dead_letter(&stage, new_job("c"), "lost").await?;
    let held = stage.leased(new_job("held").unique_key("key")).await?;
    if stage.store.capabilities().policies {
        let policy = QueuePolicy { max_attempts: Some(MaxAttempts::new(7)?), ..QueuePolicy::default() };
        stage.store.set_policy(&"a*".try_into()?, &policy).await?;
    }
    let before = stage.dump().await?;
    let stage = stage.reopen().await?;
    let difference = stage.dump().await?.difference(&before);
    ensure!(C6, difference.is_none(), "after closing and opening: {}", difference.unwrap_or_default());

    let outcome = stage.try_settle(held.receipt(), Verdict::done()).await?;
    ensure!(C6, !outcome.is_lost(), "the receipt {} of the handle that was closed is stale", held.receipt());
    let next = stage.enqueue(new_job("held").unique_key("key")).await?;
    let last = before.jobs.iter().map(|job| job.id).chain(before.history.iter().map(|job| job.id)).max();
    ensure!(C6, Some(next) > last, "the next job is {next:?}, although {last:?} was given before");
    let job = stage.claim_one("held").await?;
    let now = stage.now().await?;
    ensure!(C6, job.state(now) == JobState::Running, "the next job is {job:?}");
    Ok(())
}
