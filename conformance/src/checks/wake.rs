//! Hints to look now.

use std::time::Duration;

use futures_util::StreamExt;
use leasehold_core::{BatchSize, Json, Queues, Redrive, Schedule, Store, Verdict, Wakeups};

use super::scene::{at_most, dead_letter, fifo, pattern, queues};
use crate::check::checks;
use crate::failure::{Outcome, ensure};
use crate::stage::{HOUR, Stage, new_job};

checks! { "wake":
    a_new_job_wakes [W1] needs Wakeups;
    a_job_given_back_wakes [W1] needs Wakeups;
    a_reclaimed_job_wakes [W1] needs Wakeups;
    an_administrators_word_wakes [W1] needs Wakeups;
    a_redriven_job_wakes [W1] needs Wakeups;
    a_resumed_queue_wakes [W1] needs Wakeups, Policies;
    a_wider_limit_wakes [W1] needs Wakeups, ConcurrencyLimit;
    an_ended_lease_wakes_a_full_queue [W1] needs Wakeups, ConcurrencyLimit;
    an_ended_lease_wakes_a_fifo_queue [W1] needs Wakeups, Fifo;
    a_commit_wakes [W1] needs Wakeups, Transactions;
    another_handle_is_woken_too [W1] needs Wakeups;
    other_queues_do_not_wake [W2] needs Wakeups;
}

/// How long a hint may take: a bound, not a wait.
const SOON: Duration = Duration::from_secs(10);
/// How long it must be quiet.
const QUIET: Duration = Duration::from_millis(200);

/// Subscribes, when what was done before has made its noise.
async fn listen(store: &dyn Store, queues: &Queues) -> Outcome<Wakeups> {
    let mut hints = store.wakeups(queues).await?;
    for _ in 0..50 {
        if !woken(&mut hints, QUIET / 4).await {
            return Ok(hints);
        }
    }
    ensure!(W2, false, "hints come and come while nothing is done");
    Ok(hints)
}

async fn woken(hints: &mut Wakeups, within: Duration) -> bool {
    matches!(tokio::time::timeout(within, hints.next()).await, Ok(Some(())))
}

async fn expect_hint(hints: &mut Wakeups, cause: &str) -> Outcome {
    ensure!(W1, woken(hints, SOON).await, "no hint within {SOON:?} after {cause}");
    Ok(())
}

async fn a_new_job_wakes(stage: Stage) -> Outcome {
    for selection in ["q", "q*", "*"] {
        let mut hints = listen(&*stage.store, &queues(selection)?).await?;
        stage.enqueue(new_job("q")).await?;
        expect_hint(&mut hints, &format!("enqueue, to a subscriber of {selection}")).await?;
    }
    let mut hints = listen(&*stage.store, &Queues::named(["a", "b"])?).await?;
    stage.enqueue(new_job("b")).await?;
    expect_hint(&mut hints, "enqueue into the second of two queues").await?;
    let mut hints = listen(&*stage.store, &queues("a")?).await?;
    let batch = [new_job("z").build()?, new_job("a").build()?, new_job("z").build()?];
    stage.store.enqueue(&batch).await?;
    expect_hint(&mut hints, "a batch for several queues").await
}

async fn a_job_given_back_wakes(stage: Stage) -> Outcome {
    for verdict in [Verdict::retry_after("no", Duration::ZERO)?, Verdict::snooze(Duration::ZERO)?] {
        let job = stage.leased(new_job("q")).await?;
        let mut hints = listen(&*stage.store, &queues("q")?).await?;
        stage.settle(job.receipt(), verdict.clone()).await?;
        expect_hint(&mut hints, &format!("{verdict:?}")).await?;
        stage.claim_one("q").await?;
    }
    let job = stage.leased(new_job("q")).await?;
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    stage.store.release(&[job.receipt()]).await?;
    expect_hint(&mut hints, "release").await
}

async fn a_reclaimed_job_wakes(stage: Stage) -> Outcome {
    stage.leased(new_job("q")).await?;
    stage.age(2 * HOUR).await?;
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    stage.reclaim().await?;
    expect_hint(&mut hints, "reclaim").await
}

async fn an_administrators_word_wakes(stage: Stage) -> Outcome {
    let id = stage.enqueue(new_job("q").delay(HOUR)).await?;
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    stage.store.promote(id).await?;
    expect_hint(&mut hints, "promote").await?;
    let job = stage.claim_one("q").await?;
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    stage.store.retry_later(job.id, Schedule::Now).await?;
    expect_hint(&mut hints, "retry_later now").await
}

async fn a_redriven_job_wakes(stage: Stage) -> Outcome {
    dead_letter(&stage, new_job("q"), "no").await?;
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    stage.store.redrive(&Redrive::all(BatchSize::MAX)).await?;
    expect_hint(&mut hints, "redrive").await
}

async fn a_resumed_queue_wakes(stage: Stage) -> Outcome {
    for name in ["q", "q*"] {
        stage.store.pause(&pattern(name)?).await?;
        stage.enqueue(new_job("q")).await?;
        let mut hints = listen(&*stage.store, &queues("q")?).await?;
        stage.store.resume(&pattern(name)?).await?;
        expect_hint(&mut hints, &format!("resume of {name}")).await?;
    }
    Ok(())
}

async fn a_wider_limit_wakes(stage: Stage) -> Outcome {
    stage.set_policy("q", at_most(1)?).await?;
    stage.enqueue_many("q", 2).await?;
    stage.claim_one("q").await?;
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    stage.set_policy("q", at_most(2)?).await?;
    expect_hint(&mut hints, "a higher limit").await
}

async fn an_ended_lease_wakes_a_full_queue(stage: Stage) -> Outcome {
    stage.set_policy("q", at_most(1)?).await?;
    expect_ends_to_wake(&stage).await
}

async fn an_ended_lease_wakes_a_fifo_queue(stage: Stage) -> Outcome {
    stage.set_policy("q", fifo()).await?;
    expect_ends_to_wake(&stage).await
}

/// Ends one lease after the other in a queue that has one at a time.
async fn expect_ends_to_wake(stage: &Stage) -> Outcome {
    stage.enqueue_many("q", 5).await?;
    for verdict in [Verdict::done(), Verdict::dead("no"), Verdict::discard("no")] {
        let job = stage.claim_one("q").await?;
        let mut hints = listen(&*stage.store, &queues("q")?).await?;
        stage.settle(job.receipt(), verdict.clone()).await?;
        expect_hint(&mut hints, &format!("{verdict:?} freed the only place")).await?;
    }
    let job = stage.claim_one("q").await?;
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    stage.store.discard(job.id, Json::null()).await?;
    expect_hint(&mut hints, "discard freed the only place").await
}

async fn a_commit_wakes(stage: Stage) -> Outcome {
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    let mut transaction = stage.begin().await?;
    transaction.enqueue_in(&[new_job("q").build()?]).await?;
    ensure!(W1, !woken(&mut hints, QUIET).await, "a hint came before the commit");
    transaction.commit().await?;
    expect_hint(&mut hints, "the commit of an enqueue").await?;
    let job = stage.claim_one("q").await?;
    let mut hints = listen(&*stage.store, &queues("q")?).await?;
    let mut transaction = stage.begin().await?;
    let retry = Verdict::retry_after("no", Duration::ZERO)?;
    let _proof = transaction.settle_in(&job.receipt(), retry).await?;
    transaction.commit().await?;
    expect_hint(&mut hints, "the commit of a retry").await
}

async fn another_handle_is_woken_too(stage: Stage) -> Outcome {
    let other = stage.connect().await?;
    let mut hints = listen(&*other, &queues("q")?).await?;
    let mut own = listen(&*stage.store, &queues("q")?).await?;
    stage.enqueue(new_job("q")).await?;
    expect_hint(&mut hints, "enqueue by another handle").await?;
    expect_hint(&mut own, "enqueue, with two subscribers").await
}

async fn other_queues_do_not_wake(stage: Stage) -> Outcome {
    let mut exact = listen(&*stage.store, &queues("a")?).await?;
    let mut prefix = listen(&*stage.store, &queues("a:*")?).await?;
    let mut named = listen(&*stage.store, &Queues::named(["a", "c"])?).await?;
    for name in ["b", "ab", "A", "a ", "A:1"] {
        let mut own = listen(&*stage.store, &queues(name)?).await?;
        stage.enqueue(new_job(name)).await?;
        expect_hint(&mut own, &format!("enqueue into {name:?}")).await?;
    }
    let wrong =
        [woken(&mut exact, QUIET).await, woken(&mut prefix, QUIET).await, woken(&mut named, QUIET).await];
    ensure!(
        W2,
        !wrong.contains(&true),
        "subscribers of a, of a:* and of a and c were woken by others: {wrong:?}"
    );
    stage.enqueue(new_job("a")).await?;
    expect_hint(&mut exact, "enqueue into a").await?;
    expect_hint(&mut named, "enqueue into a").await?;
    ensure!(W2, !woken(&mut prefix, QUIET).await, "a subscriber of a:* was woken by a");
    Ok(())
}
