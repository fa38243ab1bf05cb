//! The operations of a user's transaction, on every driver that they can run on.

mod driver;
mod work;
mod world;

use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use leasehold_core::{Queues, Store, StoreError, Verdict, Wakeups};

use self::driver::Driver;
use self::work::{
    AckPaid, Enqueue, EveryVerdict, ExpectedOutcomes, Lose, OnceTwice, Refused, Undo, WaitForKey,
    WithSavepoint,
};
use self::world::{PASSWORD, World, job, keyed_job};

#[tokio::test]
async fn a_business_row_and_an_ack_commit_together() {
    for driver in Driver::ALL {
        let world = World::new().await;
        let leased = world.leased().await;
        driver.transaction(&world, &AckPaid(leased.receipt())).await.unwrap();
        assert_eq!((world.written().await, world.is_finished(&leased).await), (1, true), "{driver:?}");
        world.end().await;
    }
}

#[tokio::test]
async fn a_rollback_leaves_neither() {
    for driver in Driver::ALL {
        let world = World::new().await;
        let leased = world.leased().await;
        driver.transaction(&world, &Undo(AckPaid(leased.receipt()))).await.unwrap_err();
        assert_eq!((world.written().await, world.is_finished(&leased).await), (0, false), "{driver:?}");
        // The receipt is as good as before.
        driver.transaction(&world, &AckPaid(leased.receipt())).await.unwrap();
        world.end().await;
    }
}

#[tokio::test]
async fn a_stale_receipt_undoes_the_business_row() {
    for driver in Driver::ALL {
        let world = World::new().await;
        let leased = world.leased().await;
        world.store.settle(&[(leased.receipt(), Verdict::release())]).await.unwrap();
        let refused = driver.transaction(&world, &AckPaid(leased.receipt())).await.unwrap_err();
        assert!(refused.is_lease_lost(), "{driver:?}: {refused:?}");
        assert_eq!((world.written().await, world.is_finished(&leased).await), (0, false), "{driver:?}");
        world.end().await;
    }
}

#[tokio::test]
async fn an_expected_outcome_leaves_the_transaction_usable() {
    for driver in Driver::ALL {
        let world = World::new().await;
        let stale = world.leased().await.receipt();
        world.store.settle(&[(stale, Verdict::done())]).await.unwrap();
        let first = world.store.enqueue(&[keyed_job("mail", "there")]).await.unwrap()[0].id;
        driver.transaction(&world, &ExpectedOutcomes { stale, first }).await.unwrap();
        assert_eq!((world.written().await, world.live_jobs().await), (1, 2), "{driver:?}");
        world.end().await;
    }
}

#[tokio::test]
async fn once_is_true_once() {
    for driver in Driver::ALL {
        let world = World::new().await;
        driver.transaction(&world, &Undo(OnceTwice { is_first: true })).await.unwrap_err();
        driver.transaction(&world, &OnceTwice { is_first: true }).await.unwrap();
        driver.transaction(&world, &OnceTwice { is_first: false }).await.unwrap();
        world.end().await;
    }
}

#[tokio::test]
async fn every_verdict_does_what_it_does_outside() {
    for driver in Driver::ALL {
        let world = World::new().await;
        let mut leased = Vec::new();
        for _ in 0..EveryVerdict::COUNT {
            leased.push(world.leased().await);
        }
        driver.transaction(&world, &EveryVerdict(&leased)).await.unwrap();
        let mut finished = Vec::new();
        for job in &leased {
            finished.push(world.is_finished(job).await);
        }
        assert_eq!(finished, [true, false, false, false, true, true], "{driver:?}");
        world.end().await;
    }
}

#[tokio::test]
async fn outside_a_transaction_nothing_is_done() {
    let mut refused = 0;
    for driver in Driver::ALL {
        let world = World::new().await;
        let leased = world.leased().await;
        if let Some(outcome) = driver.outside(&world, &Refused(leased.receipt())).await {
            outcome.unwrap();
            refused += 1;
        }
        assert_eq!((world.live_jobs().await, world.is_finished(&leased).await), (1, false), "{driver:?}");
        world.end().await;
    }
    assert_eq!(refused, 3); // A tokio_postgres::Transaction always is one.
}

#[tokio::test]
async fn a_savepoint_can_be_rolled_back_to() {
    for driver in Driver::ALL {
        let world = World::new().await;
        driver.transaction(&world, &WithSavepoint).await.unwrap();
        assert_eq!(world.live_jobs().await, 1, "{driver:?}");
        world.end().await;
    }
}

#[tokio::test]
async fn a_commit_wakes_and_a_rollback_does_not() {
    for driver in Driver::ALL {
        let world = World::new().await;
        let other = world.other().await;
        let mut undone = other.wakeups(&"undone".parse::<Queues>().unwrap()).await.unwrap();
        let mut done = other.wakeups(&"done".parse::<Queues>().unwrap()).await.unwrap();
        driver.transaction(&world, &Undo(Enqueue(job("undone")))).await.unwrap_err();
        driver.transaction(&world, &Enqueue(job("done"))).await.unwrap();
        woken(&mut done).await;
        // Messages come in the order of the commits, so this one would have come before.
        assert!(undone.next().now_or_never().is_none(), "{driver:?}");
        drop(other);
        world.end().await;
    }
}

#[tokio::test]
async fn a_lost_connection_undoes_everything() {
    for driver in Driver::ALL {
        let world = World::new().await;
        let leased = world.leased().await;
        let lost = driver.transaction(&world, &Lose(leased.receipt())).await.unwrap_err();
        assert!(!format!("{lost:?}").contains(PASSWORD), "{driver:?}: {lost:?}");
        assert_eq!((world.written().await, world.is_finished(&leased).await), (0, false), "{driver:?}");
        world.end().await;
    }
}

#[tokio::test]
async fn a_lock_that_is_waited_for_too_long_is_worth_another_try() {
    for driver in Driver::ALL {
        let world = World::new().await;
        let mut holder = world.sqlx.begin().await.unwrap();
        OnceTwice { is_first: true }.take(&world, &mut *holder).await.unwrap();
        let error = driver.transaction(&world, &WaitForKey).await.unwrap_err();
        let leasehold_postgres::TxError::Store(error) = error else { panic!("{driver:?}: {error:?}") };
        assert!(
            matches!(error, StoreError::Unavailable { operation: "once_in", .. }),
            "{driver:?}: {error:?}"
        );
        holder.rollback().await.unwrap();
        world.end().await;
    }
}

async fn woken(wakeups: &mut Wakeups) {
    tokio::time::timeout(Duration::from_secs(10), wakeups.next()).await.unwrap().unwrap();
}
