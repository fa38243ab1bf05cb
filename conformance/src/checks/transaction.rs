//! Operations on the caller's own transaction.

use leasehold_core::{IdempotencyKey, Job, Json, NewJobBuilder, Record, StoreError, Verdict};

use crate::check::checks;
use crate::failure::{Outcome, Problem, ensure, ensure_eq};
use crate::stage::{HOUR, Stage, new_job};

checks! { "transaction":
    enqueued_once_committed [T1] needs Transactions;
    enqueued_not_after_rollback [T1] needs Transactions;
    duplicates_are_seen_in_a_transaction [T1] needs Transactions;
    outside_a_transaction_is_refused [T4] needs Transactions;
    once_is_true_once [T5] needs Transactions;
    an_expected_outcome_spoils_nothing [T6] needs Transactions;
    a_dropped_transaction_leaves_nothing [T8] needs Transactions;
    a_key_that_the_transaction_frees_can_be_taken_by_it [T1] needs Transactions;
    what_is_enqueued_is_what_was_given [T1, E8, E9, E11] needs Transactions;
    attempts_default_to_the_policy_in_a_transaction [E12] needs Transactions, Policies;
    a_key_that_the_transaction_keeps_is_taken [T1, E6] needs Transactions;
    long_once_keys_are_told_apart [T5] needs Transactions;
}

pub(super) fn verdicts() -> Outcome<Vec<Verdict>> {
    Ok(vec![
        Verdict::done_with("result")?,
        Verdict::retry_after("again", 2 * HOUR)?,
        Verdict::snooze(2 * HOUR)?,
        Verdict::dead("no"),
        Verdict::discard("no"),
    ])
}

async fn enqueued_once_committed(stage: Stage) -> Outcome {
    let other = stage.connect().await?;
    let mut transaction = stage.begin().await?;
    transaction.write("order 1").await?;
    let jobs =
        [new_job("q").payload(&1).unique_key("k").build()?, new_job("q").payload(&2).delay(HOUR).build()?];
    let answers = transaction.enqueue_in(&jobs).await?;
    ensure_eq!(
        T1,
        "answers",
        answers.iter().map(|answer| answer.deduplicated).collect::<Vec<_>>(),
        [false, false]
    );
    for answer in &answers {
        let early = other.get(answer.id).await?;
        ensure!(T1, early.is_none(), "before the commit another handle sees {early:?}");
    }
    transaction.commit().await?;
    for (answer, new) in answers.iter().zip(&jobs) {
        let Some(Record::Live(job)) = other.get(answer.id).await? else {
            ensure!(T1, false, "job {} was committed but is not there", answer.id);
            return Ok(());
        };
        ensure_eq!(T1, "payload", job.payload, *new.payload());
        ensure_eq!(T1, "unique key", job.unique_key.as_ref(), new.unique_key());
    }
    ensure_eq!(T1, "leased", stage.claim("q", 10).await?.len(), 1);
    ensure_eq!(T1, "ledger", stage.ledger().await?, ["order 1"]);
    Ok(())
}

async fn enqueued_not_after_rollback(stage: Stage) -> Outcome {
    let before = stage.dump().await?;
    let mut transaction = stage.begin().await?;
    transaction.write("order 1").await?;
    let answers = transaction.enqueue_in(&[new_job("q").unique_key("k").build()?]).await?;
    transaction.rollback().await?;
    let left = stage.store.get(answers[0].id).await?;
    ensure!(T1, left.is_none(), "rolled back, but there is {left:?}");
    let difference = stage.dump().await?.difference(&before);
    ensure!(T1, difference.is_none(), "a rollback left {difference:?}");
    let left = stage.ledger().await?;
    ensure!(T1, left.is_empty(), "rolled back, but the ledger has {left:?}");
    let again = stage.store.enqueue(&[new_job("q").unique_key("k").build()?]).await?;
    ensure!(T1, !again[0].deduplicated, "a key of a rolled back job is taken: {again:?}");
    Ok(())
}

async fn duplicates_are_seen_in_a_transaction(stage: Stage) -> Outcome {
    let live = stage.enqueue(new_job("q").unique_key("k")).await?;
    let mut transaction = stage.begin().await?;
    let keyed = |key: &str| new_job("q").unique_key(key).build();
    let answers = transaction.enqueue_in(&[keyed("k")?, keyed("new")?, keyed("new")?]).await?;
    let again = transaction.enqueue_in(&[keyed("new")?]).await?;
    ensure!(
        T1,
        answers[0].deduplicated && answers[0].id == live,
        "a duplicate of job {live} was answered {answers:?}"
    );
    ensure!(T1, !answers[1].deduplicated, "a new key was answered {answers:?}");
    let same = answers[2].deduplicated && again[0].deduplicated && again[0].id == answers[1].id;
    ensure!(
        T1,
        same && answers[2].id == answers[1].id,
        "duplicates inside the transaction: {answers:?}, {again:?}"
    );
    transaction.commit().await?;
    ensure_eq!(T1, "jobs", stage.dump().await?.jobs.len(), 2);
    Ok(())
}

async fn outside_a_transaction_is_refused(stage: Stage) -> Outcome {
    let Some(mut connection) = stage.no_transaction().await? else {
        return Err(Problem::NotApplicable("a connection of this backend always is a transaction"));
    };
    let job = stage.leased(new_job("q")).await?;
    let before = stage.dump().await?;
    for verdict in verdicts()? {
        let answer = connection.settle_in(&job.receipt(), verdict).await;
        let refused = matches!(answer, Err(StoreError::NoTransaction { .. }));
        ensure!(T4, refused, "settle_in outside a transaction was answered {answer:?}");
    }
    let answer = connection.enqueue_in(&[new_job("q").build()?]).await;
    let refused = matches!(answer, Err(StoreError::NoTransaction { .. }));
    ensure!(T4, refused, "enqueue_in outside a transaction was answered {answer:?}");
    let key = IdempotencyKey::new("once")?;
    let answer = connection.once_in(&key).await;
    let refused = matches!(answer, Err(StoreError::NoTransaction { .. }));
    ensure!(T4, refused, "once_in outside a transaction was answered {answer:?}");
    let difference = stage.dump().await?.difference(&before);
    ensure!(T4, difference.is_none(), "an operation outside a transaction changed {difference:?}");
    let mut transaction = stage.begin().await?;
    ensure_eq!(T4, "once after it was refused", transaction.once_in(&key).await?, true);
    Ok(transaction.rollback().await?)
}

async fn once_is_true_once(stage: Stage) -> Outcome {
    let key = IdempotencyKey::new("charge order 1")?;
    let other = IdempotencyKey::new("Charge order 1")?;
    let mut transaction = stage.begin().await?;
    let answers = [transaction.once_in(&key).await?, transaction.once_in(&key).await?];
    ensure_eq!(T5, "first and second call in a transaction", answers, [true, false]);
    transaction.rollback().await?;

    let mut transaction = stage.begin().await?;
    ensure_eq!(T5, "after a rollback", transaction.once_in(&key).await?, true);
    transaction.commit().await?;

    for _ in 0..2 {
        let mut transaction = stage.begin().await?;
        ensure_eq!(T5, "after a commit", transaction.once_in(&key).await?, false);
        ensure_eq!(T5, "another key", transaction.once_in(&other).await?, true);
        transaction.rollback().await?;
    }
    Ok(())
}

async fn an_expected_outcome_spoils_nothing(stage: Stage) -> Outcome {
    let key = IdempotencyKey::new("once")?;
    let mut transaction = stage.begin().await?;
    transaction.once_in(&key).await?;
    transaction.commit().await?;
    let duplicate = stage.enqueue(new_job("dup").unique_key("k")).await?;
    let stale = stage.leased(new_job("q")).await?;
    stage.settle(stale.receipt(), Verdict::release()).await?;
    let good = stage.claim_one("q").await?;

    let mut transaction = stage.begin().await?;
    transaction.write("first").await?;
    ensure_eq!(T6, "once", transaction.once_in(&key).await?, false);
    let answers = transaction.enqueue_in(&[new_job("dup").unique_key("k").build()?]).await?;
    ensure_eq!(T6, "duplicate", answers[0].id, duplicate);
    let lost = transaction.settle_in(&stale.receipt(), Verdict::done()).await;
    ensure!(T6, lost.is_err(), "a stale receipt was answered {lost:?}");
    transaction.write("second").await?;
    let more = transaction.enqueue_in(&[new_job("more").build()?]).await?;
    let _settled = transaction.settle_in(&good.receipt(), Verdict::done()).await?;
    if let Err(error) = transaction.commit().await {
        ensure!(T6, false, "after expected outcomes the commit failed: {error}");
    }
    ensure_eq!(T6, "ledger", stage.ledger().await?, ["first", "second"]);
    ensure_eq!(T6, "enqueued", stage.live(more[0].id).await?.queue.as_str(), "more");
    stage.finished(good.id).await?;
    Ok(())
}

async fn a_dropped_transaction_leaves_nothing(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q")).await?;
    let before = stage.dump().await?;
    for _ in 0..3 {
        let mut transaction = stage.begin().await?;
        transaction.write("effect").await?;
        let _dropped = transaction.settle_in(&job.receipt(), Verdict::done()).await?;
        transaction.enqueue_in(&[new_job("q").unique_key("k").build()?]).await?;
        transaction.once_in(&IdempotencyKey::new("once")?).await?;
        drop(transaction);
    }
    // A lock that is left behind would stop these for ever; the suite's time limit would say so.
    let answers = stage
        .store
        .enqueue(&[new_job("other").unique_key("k").build()?, new_job("q").unique_key("k").build()?])
        .await?;
    ensure!(
        T8,
        answers.iter().all(|answer| !answer.deduplicated),
        "keys of a dropped transaction: {answers:?}"
    );
    for answer in answers {
        stage.store.discard(answer.id, Json::null()).await?;
    }
    let dump = stage.dump().await?;
    ensure!(T8, dump.jobs == before.jobs, "a dropped transaction left {:?}", dump.difference(&before));
    let mut transaction = stage.begin().await?;
    ensure_eq!(T8, "once after a drop", transaction.once_in(&IdempotencyKey::new("once")?).await?, true);
    transaction.rollback().await?;
    stage.settle(job.receipt(), Verdict::done()).await?;
    let left = stage.ledger().await?;
    ensure!(T8, left.is_empty(), "the ledger has {left:?}");
    Ok(())
}

async fn a_key_that_the_transaction_frees_can_be_taken_by_it(stage: Stage) -> Outcome {
    let job = stage.leased(new_job("q").unique_key("k")).await?;
    let mut transaction = stage.begin().await?;
    let _settled = transaction.settle_in(&job.receipt(), Verdict::done()).await?;
    let answers = transaction.enqueue_in(&[new_job("q").unique_key("k").build()?]).await?;
    ensure!(T1, !answers[0].deduplicated, "the job with the key was finished just before: {answers:?}");
    transaction.commit().await?;
    stage.finished(job.id).await?;
    stage.live(answers[0].id).await?;
    Ok(())
}

async fn what_is_enqueued_is_what_was_given(stage: Stage) -> Outcome {
    let now = stage.now().await?;
    let full = |queue: &str| {
        new_job(queue).payload("p").header("h", "v").header("empty", "").priority(-7).max_attempts(9)
    };
    let schedules: [fn(NewJobBuilder, chrono::DateTime<chrono::Utc>) -> NewJobBuilder; 4] = [
        |job, _| job,
        |job, _| job.delay(2 * HOUR),
        |job, now| job.at(leasehold_core::time::later(now, 3 * HOUR)),
        |job, now| job.at(leasehold_core::time::earlier(now, 3 * HOUR)),
    ];
    for (number, schedule) in schedules.into_iter().enumerate() {
        let (inside, outside) = (format!("in-{number}"), format!("out-{number}"));
        let expected = stage.enqueue(schedule(full(&outside).unique_key("k"), now)).await?;
        let from = stage.now().await?;
        let mut transaction = stage.begin().await?;
        let answers =
            transaction.enqueue_in(&[schedule(full(&inside).unique_key("k"), now).build()?]).await?;
        transaction.commit().await?;
        let to = stage.now().await?;
        let (expected, seen) = (stage.live(expected).await?, stage.live(answers[0].id).await?);
        let times = (seen.created_at, seen.updated_at);
        let right = times.0 == times.1 && (from..=to).contains(&times.0);
        ensure!(T1, right, "created_at and updated_at are {times:?}, expected {from} to {to}");
        let waits = |job: &Job| (job.available_at - job.created_at).num_seconds() / 60;
        ensure_eq!(E8, format!("minutes that job {number} waits"), waits(&seen), waits(&expected));
        let (id, queue) = (seen.id, seen.queue.clone());
        let (created_at, updated_at, available_at) = (seen.created_at, seen.updated_at, seen.available_at);
        let expected = Job { id, queue, created_at, updated_at, available_at, ..expected };
        ensure_eq!(T1, "the job enqueued in a transaction", seen, expected);
    }
    Ok(())
}

async fn attempts_default_to_the_policy_in_a_transaction(stage: Stage) -> Outcome {
    let max_attempts = Some(leasehold_core::MaxAttempts::new(2)?);
    stage.set_policy("q*", leasehold_core::QueuePolicy { max_attempts, ..Default::default() }).await?;
    stage.enqueue(new_job("q-known")).await?;
    let mut transaction = stage.begin().await?;
    let jobs = [new_job("q-known").build()?, new_job("q-new").build()?, new_job("other").build()?];
    let answers = transaction.enqueue_in(&jobs).await?;
    transaction.commit().await?;
    for (answer, expected) in answers.iter().zip([2, 2, 5]) {
        let job = stage.live(answer.id).await?;
        ensure_eq!(E12, format!("max_attempts in {}", job.queue), job.max_attempts.get(), expected);
    }
    Ok(())
}

async fn a_key_that_the_transaction_keeps_is_taken(stage: Stage) -> Outcome {
    for verdict in [Verdict::retry_after("no", HOUR)?, Verdict::snooze(HOUR)?, Verdict::retry("no")] {
        let stage = stage.fresh().await?;
        let job = stage.leased(new_job("q").unique_key("k")).await?;
        let mut transaction = stage.begin().await?;
        let _settled = transaction.settle_in(&job.receipt(), verdict.clone()).await?;
        let answers = transaction.enqueue_in(&[new_job("q").unique_key("k").build()?]).await?;
        let taken = answers[0].deduplicated && answers[0].id == job.id;
        ensure!(E6, taken, "after {verdict:?} the key of job {} was enqueued again: {answers:?}", job.id);
        transaction.commit().await?;
        ensure_eq!(E6, "live jobs", stage.dump().await?.jobs.len(), 1);
    }
    Ok(())
}

async fn long_once_keys_are_told_apart(stage: Stage) -> Outcome {
    for common in [31, 63, 127, 190, 199, 254] {
        for last in ["a", "b"] {
            let key = IdempotencyKey::new("k".repeat(common) + last)?;
            let mut transaction = stage.begin().await?;
            let fresh = transaction.once_in(&key).await?;
            ensure!(T5, fresh, "a key that differs in byte {} was taken for another", common + 1);
            transaction.commit().await?;
        }
    }
    for key in ["key", "KEY", "key ", " key", "k\u{e9}y", "ke\u{301}y", "ß", "ss"] {
        let mut transaction = stage.begin().await?;
        let fresh = transaction.once_in(&IdempotencyKey::new(key)?).await?;
        ensure!(T5, fresh, "the new key {key:?} was taken for another");
        transaction.commit().await?;
    }
    Ok(())
}
