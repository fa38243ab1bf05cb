//! Queues of a prefix whose jobs are for later: however many there are, none is forgotten, and they take their turns.

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use leasehold_core::{Dequeue, NewJob, Queues, Store};
use leasehold_postgres::{PgStore, Schema};

const HOUR: Duration = Duration::from_secs(3600);

async fn store() -> (PgStore, Schema) {
    let (schema, url) = (crate::support::fresh_schema(), crate::support::url("LEASEHOLD_TEST_POSTGRES_URL"));
    let store = PgStore::builder().schema(schema.clone()).connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    (store, schema)
}

async fn enqueue(store: &PgStore, queues: impl IntoIterator<Item = String>, delay: Duration) {
    let jobs: Vec<_> = queues
        .into_iter()
        .map(|queue| NewJob::builder(queue.as_str(), "k").delay(delay).build().unwrap())
        .collect();
    store.enqueue(&jobs).await.unwrap();
}

async fn pass(store: &PgStore, schema: &Schema, time: Duration) {
    let by = format!("interval '{} seconds'", time.as_secs());
    let text = format!(
        "UPDATE {schema}.job_queue SET available_at = available_at - {by}, updated_at = updated_at - {by}"
    );
    store.pool().get().await.unwrap().batch_execute(&text).await.unwrap();
}

/// The queues of the next claim over `prefix`, in its order.
async fn claim(store: &PgStore, prefix: &str, limit: u32) -> Vec<String> {
    let queues: Queues = prefix.parse().unwrap();
    let request = Dequeue { queues, ..Dequeue::new("q", "w").unwrap().limit(limit).unwrap() };
    store.dequeue(&request).await.unwrap().iter().map(|job| job.queue.to_string()).collect()
}

/// More queues than are looked at first, and all of them paused: the one behind them decides.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_look_is_not_hidden_behind_paused_queues() {
    let (store, _schema) = store().await;
    let next = async |prefix: &str| store.next_available_at(&prefix.parse().unwrap()).await.unwrap();
    assert_eq!(next("p:*").await, None);
    enqueue(&store, (0..150).map(|n| format!("p:a{n}")), HOUR).await;
    assert!(next("p:*").await.unwrap().wait <= HOUR);
    store.pause(&"p:a*".parse().unwrap()).await.unwrap();
    assert_eq!(next("p:*").await, None);
    enqueue(&store, ["p:z".to_owned()], 2 * HOUR).await;
    let wait = next("p:*").await.unwrap().wait;
    assert!(HOUR < wait && wait <= 2 * HOUR, "{wait:?}");
    // Nor behind the queues of other prefixes.
    enqueue(&store, (0..150).map(|n| format!("other:{n}")), HOUR / 2).await;
    let wait = next("p:z*").await.unwrap().wait;
    assert!(HOUR < wait && wait <= 2 * HOUR, "{wait:?}");
}

/// More scheduled jobs have come due than are looked at at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_not_hidden_behind_thousands_of_jobs_that_came_due() {
    let (store, schema) = store().await;
    enqueue(&store, (0..1500).map(|_| "other".to_owned()), HOUR).await;
    enqueue(&store, ["p:x".to_owned()], 2 * HOUR).await;
    enqueue(&store, ["p:y".to_owned()], 4 * HOUR).await;
    assert!(claim(&store, "p:*", 10).await.is_empty());
    pass(&store, &schema, 3 * HOUR).await;
    assert_eq!(claim(&store, "p:*", 10).await, ["p:x"]);
}

/// Queues with jobs for now and queues whose jobs have come due are served in one order.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_came_due_take_their_turns() {
    let (store, schema) = store().await;
    let queue = |name: &str| format!("p:{name}");
    enqueue(&store, ["b", "b", "d", "e"].map(queue), HOUR).await;
    enqueue(&store, ["z"].map(queue), 3 * HOUR).await;
    pass(&store, &schema, 2 * HOUR).await;
    enqueue(&store, ["a", "a", "c", "e", "f"].map(queue), Duration::ZERO).await;
    assert_eq!(claim(&store, "p:*", 3).await, ["a", "b", "c"].map(queue));
    assert_eq!(claim(&store, "p:*", 4).await, ["d", "e", "f", "a"].map(queue));
    assert_eq!(claim(&store, "p:*", 9).await, ["b", "e"].map(queue));
    assert!(claim(&store, "p:*", 9).await.is_empty());
}
