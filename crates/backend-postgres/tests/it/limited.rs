//! Claims from many queues that are named and have limits: only those are locked that can give a job.

use diesel_async::pooled_connection::deadpool::Object;
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection};
use leasehold_core::{ConcurrencyLimit, Dequeue, NewJob, QueuePolicy, Queues, Store};
use leasehold_postgres::{PgStore, Schema};

/// A store whose queues have limits, and a session beside it.
struct Scene {
    store: PgStore,
    schema: Schema,
    beside: Object<AsyncPgConnection>,
}

impl Scene {
    async fn new() -> Self {
        let (schema, url) =
            (crate::support::fresh_schema(), crate::support::url("LEASEHOLD_TEST_POSTGRES_URL"));
        let store = PgStore::builder().schema(schema.clone()).connect(&url).await.unwrap();
        store.migrate().await.unwrap();
        let concurrency_limit = Some(ConcurrencyLimit::new(5).unwrap());
        let policy = QueuePolicy { concurrency_limit, ..QueuePolicy::default() };
        store.set_policy(&"*".parse().unwrap(), &policy).await.unwrap();
        let beside = store.pool().get().await.unwrap();
        Self { store, schema, beside }
    }

    /// A job for each pair of a queue and a priority.
    async fn enqueue(&self, jobs: impl IntoIterator<Item = (String, i32)>) {
        let jobs: Vec<_> = jobs
            .into_iter()
            .map(|(queue, priority)| NewJob::builder(queue.as_str(), "k").priority(priority).build().unwrap())
            .collect();
        self.store.enqueue(&jobs).await.unwrap();
    }

    /// The queues and priorities of the next claim, in its order.
    async fn claim(&self, queues: &[String], limit: u32) -> Vec<(String, i32)> {
        let queues = Queues::named(queues.iter().map(String::as_str)).unwrap();
        let request = Dequeue { queues, ..Dequeue::new("q", "w").unwrap().limit(limit).unwrap() };
        let jobs = self.store.dequeue(&request).await.unwrap();
        jobs.iter().map(|job| (job.queue.to_string(), job.priority)).collect()
    }

    async fn by_hand(&mut self, text: &str) {
        self.beside.batch_execute(&text.replace("{schema}", &self.schema.to_string())).await.unwrap();
    }
}

/// Another claim has the row of a queue whose jobs come last.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_whose_jobs_come_later_is_not_waited_for() {
    let mut scene = Scene::new().await;
    let queues: Vec<_> = (0..100).map(|n| format!("q{n:02}")).collect();
    scene.enqueue(queues.iter().cloned().zip((0..100).rev())).await;
    assert_eq!(scene.claim(&queues, 1).await, [("q00".to_owned(), 99)]);
    assert_eq!(scene.claim(&["q99".to_owned()], 1).await.len(), 1); // So that it has a row.
    scene.enqueue([("q99".to_owned(), 0)]).await;
    scene.by_hand("BEGIN; SELECT FROM {schema}.job_queue_limit WHERE queue_name = 'q99' FOR UPDATE").await;
    let expected: Vec<_> = (1..6).map(|n| (format!("q{n:02}"), 99 - n)).collect();
    assert_eq!(scene.claim(&queues, 5).await, expected);
    scene.by_hand("ROLLBACK").await;
}

/// As many queues are looked at as jobs are wanted. If the job of one of them is locked, another queue has the next.
#[tokio::test(flavor = "multi_thread")]
async fn the_order_holds_also_behind_a_locked_job() {
    let mut scene = Scene::new().await;
    let queues = ["a", "b", "c", "d"].map(str::to_owned);
    let job = |queue: &str, priority: i32| (queue.to_owned(), priority);
    scene.enqueue([job("a", 9), job("b", 8), job("b", 1), job("c", 7), job("d", 6)]).await;
    scene.by_hand("BEGIN; SELECT FROM {schema}.job_queue WHERE queue_name = 'a' FOR UPDATE").await;
    assert_eq!(scene.claim(&queues, 2).await, [job("b", 8), job("c", 7)]);
    assert_eq!(scene.claim(&queues, 9).await, [job("d", 6), job("b", 1)]);
    scene.by_hand("ROLLBACK").await;
    assert_eq!(scene.claim(&queues, 9).await, [job("a", 9)]);
}

/// Thousands of queues have no place left: those behind them are found.
#[tokio::test(flavor = "multi_thread")]
async fn full_queues_hide_no_other() {
    let scene = Scene::new().await;
    let queues: Vec<_> = (0..1000).map(|n| format!("q{n}")).collect();
    scene.enqueue(queues[..999].iter().flat_map(|queue| (0..6).map(|_| (queue.clone(), 5)))).await;
    scene.enqueue([(queues[999].clone(), 0)]).await;
    for _ in 0..5 {
        assert_eq!(scene.claim(&queues, 999).await.len(), 999);
    }
    assert_eq!(scene.claim(&queues, 10).await, [(queues[999].clone(), 0)]);
}
