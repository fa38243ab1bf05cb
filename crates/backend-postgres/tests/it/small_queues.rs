//! The claim for queues with a few jobs: it takes no more than it is asked for, and gives way to the full claim.

use diesel_async::SimpleAsyncConnection;
use diesel_async::pooled_connection::deadpool::Object;
use leasehold_core::{Dequeue, Job, NewJob, Store};
use leasehold_postgres::PgStore;

async fn claim(store: &PgStore, limit: u32) -> Vec<Job> {
    store.dequeue(&Dequeue::new("q", "w").unwrap().limit(limit).unwrap()).await.unwrap()
}

/// A store that knows its queue to be small, with so many jobs in it.
async fn small(jobs: i32) -> (PgStore, String) {
    let schema = crate::support::fresh_schema();
    let url = crate::support::url("LEASEHOLD_TEST_POSTGRES_URL");
    let store = PgStore::builder().schema(schema.clone()).connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    assert!(claim(&store, 1).await.is_empty()); // The full claim, which sees that there are only a few.
    let job = |n| NewJob::builder("q", "work").priority(n % 3).build().unwrap();
    store.enqueue(&(0..jobs).map(job).collect::<Vec<_>>()).await.unwrap();
    (store, schema.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_claims_at_once_share_a_small_queue() {
    let (store, schema) = small(10).await;
    let mut other = Object::take(store.pool().get().await.unwrap());
    let one = format!("BEGIN; SELECT * FROM {schema}.dequeue_few_v2('q', 1, 60000000, 'other', 16, 1000000)");
    other.batch_execute(&one).await.unwrap();
    assert_eq!(claim(&store, 10).await.len(), 9, "the other one has locked more than it takes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_has_grown_is_claimed_from_in_order() {
    let (store, _) = small(40).await;
    let jobs = claim(&store, 100).await;
    assert_eq!(jobs.len(), 40, "the full claim did not follow");
    let priorities: Vec<i32> = jobs.iter().map(|job| job.priority).collect();
    assert!(priorities.is_sorted_by(|a, b| a >= b), "{priorities:?}");
}
