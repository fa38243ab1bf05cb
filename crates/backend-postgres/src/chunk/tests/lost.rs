//! A connection that is lost while a batch is under way in chunks.

use std::time::Instant;

use leasehold_core::{Store, StoreError};

use super::{DEADLINE, World, job};

const END: &str = "PERFORM pg_terminate_backend(pg_backend_pid()), pg_sleep(30)";

#[tokio::test(flavor = "multi_thread")]
async fn before_the_commit_nothing_was_done() {
    let mut world = World::new().await;
    world.at_insert("job_queue", "BEFORE", "NEW.kind = 'last'", END).await;
    let jobs = [job("k", None), job("k", None), job("k", None), job("last", None)];
    let error = world.small.enqueue(&jobs).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    assert_eq!(world.jobs().await, 0);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn during_the_commit_it_is_unknown() {
    let mut world = World::new().await;
    world.at_insert("job_queue", "AFTER COMMIT", "NEW.kind = 'last'", END).await;
    let jobs = [job("k", None), job("k", None), job("k", None), job("last", None)];
    let error = world.small.enqueue(&jobs).await.unwrap_err();
    assert!(matches!(error, StoreError::Unknown { .. }), "{error:?}");
    world.end().await;
}

/// The transaction of a future that was dropped does not stay open, neither on the store's own connections nor on a user's pool.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_batch_leaves_no_transaction() {
    let mut world = World::new().await;
    let users =
        crate::PgStore::builder().schema(world.schema.clone()).chunks(super::Chunks::of(super::SMALL));
    let stores = [world.small.clone(), users.from_pool(world.whole.pool().clone())];
    world
        .at_insert(
            "job_queue",
            "BEFORE",
            "NEW.kind = 'last'",
            "PERFORM pg_advisory_xact_lock(hashtext('{schema}'))",
        )
        .await;
    for store in stores {
        world.run("SELECT pg_advisory_lock(hashtext('{schema}'))").await;
        let batch = tokio::spawn(async move {
            let jobs = [job("k", None), job("k", None), job("k", None), job("last", None)];
            store.enqueue(&jobs).await
        });
        world.wait_for_a_lock().await;
        batch.abort();
        assert!(batch.await.unwrap_err().is_cancelled());
        world.run("SELECT pg_advisory_unlock(hashtext('{schema}'))").await;
        let open = "SELECT count(*) FROM pg_stat_clear_snapshot(), pg_stat_activity
                    WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND query LIKE '%{schema}%'";
        let start = Instant::now();
        while world.number(open).await > 0 {
            assert!(start.elapsed() < DEADLINE, "a transaction is open");
        }
        assert_eq!(world.jobs().await, 0);
    }
    world.end().await;
}
