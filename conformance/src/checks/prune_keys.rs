//! Forgetting idempotency keys.

use std::time::Duration;

use leasehold_core::{BatchSize, FinalStatus, IdempotencyKey, Json, Prune, Queues};

use super::scene::queues;
use crate::check::checks;
use crate::failure::{Outcome, ensure_eq};
use crate::stage::{HOUR, Stage};

checks! { "prune":
    a_key_is_kept_for_thirty_days [T5, U4] needs Transactions;
    a_key_is_forgotten_after_its_retention [U4, T5] needs Transactions;
    a_key_is_forgotten_whatever_the_age_of_jobs [U4] needs Transactions;
    each_key_has_its_own_retention [U4, T5] needs Transactions;
    a_restricted_call_forgets_no_key [U4] needs Transactions;
    jobs_and_keys_share_the_limit [U4] needs Transactions;
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn older_than(age: Duration, limit: u32) -> Outcome<Prune> {
    Ok(Prune::older_than(age, BatchSize::new(limit)?)?)
}

fn key(text: &str, retention: Duration) -> Outcome<IdempotencyKey> {
    Ok(IdempotencyKey::new(text)?.retention(retention)?)
}

/// The answer for each key in a transaction that commits.
async fn once(stage: &Stage, keys: &[IdempotencyKey]) -> Outcome<Vec<bool>> {
    let mut transaction = stage.begin().await?;
    let mut answers = Vec::new();
    for key in keys {
        answers.push(transaction.once_in(key).await?);
    }
    transaction.commit().await?;
    Ok(answers)
}

/// Whether each key is kept: the answers in a transaction that is rolled back.
async fn kept(stage: &Stage, keys: &[IdempotencyKey]) -> Outcome<Vec<bool>> {
    let mut transaction = stage.begin().await?;
    let mut answers = Vec::new();
    for key in keys {
        answers.push(!transaction.once_in(key).await?);
    }
    transaction.rollback().await?;
    Ok(answers)
}

async fn a_key_is_kept_for_thirty_days(stage: Stage) -> Outcome {
    let keys = [IdempotencyKey::new("charge")?];
    ensure_eq!(T5, "the first time", once(&stage, &keys).await?, [true]);
    for (days, hours) in [(0, 0), (7, 0), (22, 23)] {
        stage.age(days * DAY + hours * HOUR).await?;
        let count = stage.store.prune(&older_than(Duration::ZERO, 10)?).await?;
        ensure_eq!(U4, format!("forgotten {days} days and {hours} hours later"), count, 0);
        ensure_eq!(T5, "before its retention has passed", once(&stage, &keys).await?, [false]);
    }
    // One hour is left.
    stage.age(HOUR).await?;
    ensure_eq!(T5, "after its retention, but not forgotten yet", once(&stage, &keys).await?, [false]);
    let count = stage.store.prune(&older_than(Duration::ZERO, 10)?).await?;
    ensure_eq!(U4, "forgotten after 30 days", count, 1);
    ensure_eq!(T5, "after it was forgotten", once(&stage, &keys).await?, [true]);
    ensure_eq!(T5, "and after that", once(&stage, &keys).await?, [false]);
    Ok(())
}

async fn a_key_is_forgotten_after_its_retention(stage: Stage) -> Outcome {
    let keys = [key("charge", 2 * HOUR)?];
    for round in 1..=2 {
        ensure_eq!(T5, format!("round {round}"), once(&stage, &keys).await?, [true]);
        stage.age(HOUR).await?;
        let count = stage.store.prune(&older_than(Duration::ZERO, 10)?).await?;
        ensure_eq!(U4, "forgotten an hour before the end of its retention", count, 0);
        ensure_eq!(U4, "kept", kept(&stage, &keys).await?, [true]);
        stage.age(HOUR).await?;
        ensure_eq!(T5, "after its retention, but not forgotten yet", once(&stage, &keys).await?, [false]);
        let count = stage.store.prune(&older_than(Duration::ZERO, 10)?).await?;
        ensure_eq!(U4, "forgotten when its retention has passed", count, 1);
        ensure_eq!(U4, "kept", kept(&stage, &keys).await?, [false]);
        let count = stage.store.prune(&older_than(Duration::ZERO, 10)?).await?;
        ensure_eq!(U4, "forgotten a second time", count, 0);
    }
    Ok(())
}

async fn a_key_is_forgotten_whatever_the_age_of_jobs(stage: Stage) -> Outcome {
    let keys = [key("charge", HOUR)?];
    for request in [
        older_than(Duration::ZERO, 10)?,
        older_than(1000 * DAY, 10)?,
        Prune::by_retention(BatchSize::new(10)?),
    ] {
        ensure_eq!(T5, "the first time", once(&stage, &keys).await?, [true]);
        ensure_eq!(U4, format!("too early, by {request:?}"), stage.store.prune(&request).await?, 0);
        stage.age(2 * HOUR).await?;
        ensure_eq!(U4, format!("forgotten by {request:?}"), stage.store.prune(&request).await?, 1);
    }
    Ok(())
}

async fn each_key_has_its_own_retention(stage: Stage) -> Outcome {
    let keys = [
        key("nothing", Duration::ZERO)?,
        key("an hour", HOUR)?,
        key("three hours", 3 * HOUR)?,
        IdempotencyKey::new("thirty days")?,
        key("a hundred years", 36_525 * DAY)?,
    ];
    ensure_eq!(T5, "the first time", once(&stage, &keys).await?, [true; 5]);
    // Later calls are answered false, and their retention counts for nothing.
    let other = [key("three hours", Duration::ZERO)?, key("an hour", 1000 * DAY)?];
    ensure_eq!(T5, "with another retention", once(&stage, &other).await?, [false, false]);
    // What passes, and what is left: now, and after 2 h, 4 h, 31 days and 10 000 days.
    for (wait, count, left) in [
        (Duration::ZERO, 1, [false, true, true, true, true]),
        (2 * HOUR, 1, [false, false, true, true, true]),
        (2 * HOUR, 1, [false, false, false, true, true]),
        (31 * DAY, 1, [false, false, false, false, true]),
        (9969 * DAY, 0, [false, false, false, false, true]),
    ] {
        stage.age(wait).await?;
        let pruned = stage.store.prune(&older_than(Duration::ZERO, 10)?).await?;
        ensure_eq!(U4, format!("forgotten after another {wait:?}"), pruned, count);
        ensure_eq!(T5, "kept", kept(&stage, &keys).await?, left);
    }
    Ok(())
}

async fn a_restricted_call_forgets_no_key(stage: Stage) -> Outcome {
    let keys = [key("charge", HOUR)?];
    once(&stage, &keys).await?;
    stage.age(2 * HOUR).await?;
    let any = || older_than(Duration::ZERO, 10);
    for (pattern, finished) in [("q", 1), ("q*", 1), ("none", 0)] {
        for id in stage.enqueue_many("q", 1).await? {
            stage.store.discard(id, Json::null()).await?;
        }
        let request = Prune { queues: queues(pattern)?, ..any()? };
        ensure_eq!(U4, format!("forgotten by {request:?}"), stage.store.prune(&request).await?, finished);
        ensure_eq!(U4, "kept", kept(&stage, &keys).await?, [true]);
    }
    // The last job is still there.
    for request in [
        Prune { queues: Queues::named(["a", "b"])?, ..any()? },
        Prune { statuses: Some(vec![FinalStatus::Completed, FinalStatus::DeadLetter]), ..any()? },
        Prune { statuses: Some(Vec::new()), ..any()? },
        Prune { ids: Some(Vec::new()), ..any()? },
        Prune { queues: queues("none")?, ..Prune::by_retention(BatchSize::new(10)?) },
    ] {
        ensure_eq!(U4, format!("forgotten by {request:?}"), stage.store.prune(&request).await?, 0);
        ensure_eq!(U4, "kept", kept(&stage, &keys).await?, [true]);
    }
    let every = [FinalStatus::Completed, FinalStatus::DeadLetter, FinalStatus::Discarded];
    let request = Prune { statuses: Some(every.to_vec()), ..any()? };
    ensure_eq!(U4, "forgotten with every status named", stage.store.prune(&request).await?, 1);
    ensure_eq!(U4, "kept", kept(&stage, &keys).await?, [true]);
    ensure_eq!(U4, "forgotten without a restriction", stage.store.prune(&any()?).await?, 1);
    Ok(())
}

async fn jobs_and_keys_share_the_limit(stage: Stage) -> Outcome {
    for id in stage.enqueue_many("q", 4).await? {
        stage.store.discard(id, Json::null()).await?;
    }
    let keys =
        (0..4).map(|number| key(&number.to_string(), HOUR)).collect::<Outcome<Vec<IdempotencyKey>>>()?;
    once(&stage, &keys).await?;
    let young = [IdempotencyKey::new("young")?];
    once(&stage, &young).await?;
    stage.age(2 * HOUR).await?;
    // The jobs first. A call that answers fewer than its limit has left nothing.
    for (count, jobs, left) in [(3, 1, 4), (3, 0, 2), (2, 0, 0), (0, 0, 0)] {
        ensure_eq!(U4, "the number told", stage.store.prune(&older_than(HOUR, 3)?).await?, count);
        ensure_eq!(U4, "finished jobs left", stage.dump().await?.history.len(), jobs);
        let is_kept = kept(&stage, &keys).await?;
        ensure_eq!(U4, "passed keys left", is_kept.iter().filter(|kept| **kept).count(), left);
    }
    ensure_eq!(T5, "the other key is kept", kept(&stage, &young).await?, [true]);
    Ok(())
}
