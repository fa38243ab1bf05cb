//! Jobs that tell of themselves, and those that cannot because another one is doing so.

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use diesel_async::pooled_connection::deadpool::Object;
use futures_util::StreamExt;
use leasehold_core::{NewJob, Store};
use leasehold_postgres::{PgStore, PgStoreBuilder};
use tokio::time::timeout;

/// Nothing here takes so long.
const PATIENCE: Duration = Duration::from_secs(30);

fn job() -> NewJob {
    NewJob::builder("q", "work").build().unwrap()
}

/// Takes the lock of every channel that somebody listens on, in a transaction that stays open.
const LOCK: &str = "BEGIN; DO $$ BEGIN
    IF (SELECT count(pg_advisory_xact_lock(hashtextextended(split_part(query, ' ', 2), 0)))
        FROM pg_stat_activity WHERE query LIKE 'LISTEN leasehold%') = 0 THEN
        RAISE EXCEPTION 'nobody listens';
    END IF;
END $$";

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_cannot_tell_of_itself_is_told_of() {
    let url = crate::support::url("LEASEHOLD_TEST_POSTGRES_URL");
    let schema = crate::support::fresh_schema();
    let builder = || -> PgStoreBuilder { PgStore::builder().schema(schema.clone()) };
    let (producer, consumer) =
        (builder().connect(&url).await.unwrap(), builder().connect(&url).await.unwrap());
    producer.migrate().await.unwrap();
    let mut hints = consumer.wakeups(&"q".parse().unwrap()).await.unwrap();
    for is_locked in [false, true] {
        let producer = builder().connect(&url).await.unwrap(); // One that has said nothing yet.
        let mut other = Object::take(producer.pool().get().await.unwrap());
        if is_locked {
            other.batch_execute(LOCK).await.unwrap();
        }
        let accepted = timeout(PATIENCE, producer.enqueue(&[job()])).await;
        assert_eq!(accepted.expect("it waits for the lock").unwrap().len(), 1);
        let hint = timeout(PATIENCE, hints.next()).await;
        assert_eq!(hint.expect("nobody was told"), Some(()), "locked: {is_locked}");
    }
}
