//! Rows that this version did not write: they block nothing.

use diesel::sql_types::{BigInt, Bool};
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use leasehold_core::{
    BatchSize, ConcurrencyLimit, Dequeue, HistoryFilter, Job, JobFilter, JobId, NewJob, Prune, QueuePolicy,
    Queues, Redrive, Store, StoreError, Verdict,
};
use leasehold_postgres::{PgStore, Schema};

/// Ways to spoil a row that no constraint refuses.
const SPOILS: [&str; 6] = [
    "headers = '[1]'",
    "kind = E'a\\nb'",
    "created_at = 'infinity'",
    "available_at = '-infinity'",
    "unique_key = repeat('x', 300)",
    "first_leased_at = '290000-01-01'",
];

async fn store() -> (PgStore, Schema) {
    let schema = crate::support::fresh_schema();
    let url = crate::support::url("LEASEHOLD_TEST_POSTGRES_URL");
    let store = PgStore::builder().schema(schema.clone()).connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    (store, schema)
}

/// A job before and a job after one for each way to spoil it.
async fn spoiled(store: &PgStore, schema: &Schema, table: &str) -> Vec<i64> {
    let mut conn = store.pool().get().await.unwrap();
    let mut bad = Vec::new();
    for (number, spoil) in SPOILS.iter().enumerate() {
        let id = 2 * number + 2;
        let spoil = match table {
            "job_history" => {
                spoil.replace("first_leased_at", "started_at").replace("available_at", "finished_at")
            }
            _ => (*spoil).to_owned(),
        };
        conn.batch_execute(&format!("UPDATE {schema}.{table} SET {spoil} WHERE id = {id}")).await.unwrap();
        bad.push(id as i64);
    }
    bad
}

async fn enqueue(store: &PgStore) {
    let jobs: Vec<_> =
        (0..2 * SPOILS.len() + 1).map(|_| NewJob::builder("q", "k").build().unwrap()).collect();
    store.enqueue(&jobs).await.unwrap();
}

fn good(bad: &[i64]) -> Vec<i64> {
    (1..=2 * SPOILS.len() as i64 + 1).filter(|id| !bad.contains(id)).collect()
}

fn ids(jobs: &[Job]) -> Vec<i64> {
    let mut ids: Vec<i64> = jobs.iter().map(|job| job.id.get()).collect();
    ids.sort_unstable();
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn live_rows_that_nobody_understands() {
    let (store, schema) = store().await;
    enqueue(&store).await;
    let bad = spoiled(&store, &schema, "job_queue").await;
    let all = BatchSize::new(100).unwrap();
    assert_eq!(ids(&store.jobs(&JobFilter::default()).await.unwrap().items), good(&bad));
    for id in &bad {
        let error = store.get(JobId::new(*id)).await.unwrap_err();
        assert!(matches!(&error, StoreError::Corrupt { what } if what.contains(&id.to_string())), "{error}");
    }
    let jobs = store.dequeue(&Dequeue::new("q", "w").unwrap().limit(100).unwrap()).await.unwrap();
    assert_eq!(ids(&jobs), good(&bad));
    let items: Vec<_> = jobs.iter().map(|job| (job.receipt(), Verdict::done())).collect();
    assert!(store.settle(&items).await.unwrap().iter().all(|outcome| !outcome.is_lost()));
    // What nobody could be told of was leased to nobody: it is taken back as often as it may be tried, and then dead.
    for _ in 0..10 {
        let pass = format!(
            "UPDATE {schema}.job_queue SET lease_until = now() - interval '1 second'
                            WHERE lease_until IS NOT NULL"
        );
        store.pool().get().await.unwrap().batch_execute(&pass).await.unwrap();
        store.reclaim(all).await.unwrap();
        store.dequeue(&Dequeue::new("q", "w").unwrap().limit(100).unwrap()).await.unwrap();
    }
    let stats = store.stats(&"q".parse().unwrap()).await.unwrap();
    assert_eq!((stats[0].live(), stats[0].dead_letters), (0, SPOILS.len() as u64));
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_rows_that_nobody_understands() {
    let (store, schema) = store().await;
    enqueue(&store).await;
    let jobs = store.dequeue(&Dequeue::new("q", "w").unwrap().limit(100).unwrap()).await.unwrap();
    let items: Vec<_> = jobs.iter().map(|job| (job.receipt(), Verdict::dead("no"))).collect();
    store.settle(&items).await.unwrap();
    let bad = spoiled(&store, &schema, "job_history").await;
    let page = store.history(&HistoryFilter::default()).await.unwrap();
    let listed: Vec<i64> = page.items.iter().map(|job| job.id.get()).collect();
    assert_eq!(listed, good(&bad));
    let all = BatchSize::new(100).unwrap();
    let some = Redrive { ids: Some(listed.iter().map(|id| JobId::new(*id)).collect()), ..Redrive::all(all) };
    assert_eq!(store.redrive(&some).await.unwrap().jobs.len(), listed.len());
    let prune = Prune::older_than(std::time::Duration::ZERO, all).unwrap();
    assert_eq!(store.prune(&prune).await.unwrap(), bad.len() as u64);
}

/// How claims see the queue `a:b`.
fn claims() -> [(&'static str, Queues, QueuePolicy); 5] {
    let none = QueuePolicy::default;
    let limit = Some(ConcurrencyLimit::new(5).unwrap());
    [
        ("one queue", Queues::named(["a:b"]).unwrap(), none()),
        ("two queues", Queues::named(["a:b", "other"]).unwrap(), none()),
        ("a prefix", "a:*".parse().unwrap(), none()),
        ("a limit", Queues::named(["a:b"]).unwrap(), QueuePolicy { concurrency_limit: limit, ..none() }),
        ("a prefix and a limit", "a:*".parse().unwrap(), QueuePolicy { concurrency_limit: limit, ..none() }),
    ]
}

/// Jobs 1, 2 and 3 of the queue `a:b`, of which 2 is available since `-infinity`.
async fn since_ever(policy: &QueuePolicy, has_floor: bool) -> (PgStore, Schema) {
    let (store, schema) = store().await;
    store.set_policy(&"a:b".parse().unwrap(), policy).await.unwrap();
    let jobs = vec![NewJob::builder("a:b", "k").build().unwrap(); 3];
    store.enqueue(&jobs).await.unwrap();
    if has_floor {
        let first = store.dequeue(&Dequeue::new("a:b", "w").unwrap()).await.unwrap();
        store.settle(&[(first[0].receipt(), Verdict::done())]).await.unwrap();
    }
    let spoil = format!("UPDATE {schema}.job_queue SET available_at = '-infinity' WHERE id = 2");
    store.pool().get().await.unwrap().batch_execute(&spoil).await.unwrap();
    (store, schema)
}

/// Whether each live job is leased.
async fn leases(store: &PgStore, schema: &Schema) -> Vec<(i64, bool)> {
    #[derive(diesel::QueryableByName)]
    struct Lease {
        #[diesel(sql_type = BigInt)]
        id: i64,
        #[diesel(sql_type = Bool)]
        is_leased: bool,
    }
    let asked =
        format!("SELECT id, lease_until IS NOT NULL AS is_leased FROM {schema}.job_queue ORDER BY id");
    let mut conn = store.pool().get().await.unwrap();
    let found: Vec<Lease> = diesel::sql_query(asked).load(&mut conn).await.unwrap();
    found.into_iter().map(|lease| (lease.id, lease.is_leased)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_leases_a_job_that_is_available_since_ever() {
    for (what, queues, policy) in claims() {
        for has_floor in [false, true] {
            let what = format!("{what}, floor: {has_floor}");
            let (store, schema) = since_ever(&policy, has_floor).await;
            store.stats(&queues).await.unwrap();
            store.next_available_at(&queues).await.unwrap();
            let request =
                Dequeue { queues: queues.clone(), ..Dequeue::new("a:b", "w").unwrap() }.limit(5).unwrap();
            let good: Vec<i64> = if has_floor { vec![3] } else { vec![1, 3] };
            assert_eq!(ids(&store.dequeue(&request).await.unwrap()), good, "{what}");
            // It was leased, too, but cannot be read: reclaim takes it back when its lease has passed.
            assert!(leases(&store, &schema).await.contains(&(2, true)), "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_passes_over_a_locked_job_that_is_available_since_ever() {
    for (what, queues, policy) in claims() {
        for has_floor in [false, true] {
            let what = format!("{what}, floor: {has_floor}");
            let (store, schema) = since_ever(&policy, has_floor).await;
            let request =
                Dequeue { queues: queues.clone(), ..Dequeue::new("a:b", "w").unwrap() }.limit(5).unwrap();
            let mut beside = store.pool().get().await.unwrap();
            let lock = format!("BEGIN; SELECT FROM {schema}.job_queue WHERE id = 2 FOR UPDATE");
            beside.batch_execute(&lock).await.unwrap();
            let good: Vec<i64> = if has_floor { vec![3] } else { vec![1, 3] };
            assert_eq!(ids(&store.dequeue(&request).await.unwrap()), good, "{what}");
            assert!(leases(&store, &schema).await.contains(&(2, false)), "{what}");
            // What comes later is leased, too, and at last the job itself.
            store.enqueue(&[NewJob::builder("a:b", "k").build().unwrap()]).await.unwrap();
            assert_eq!(ids(&store.dequeue(&request).await.unwrap()), [4], "{what}");
            beside.batch_execute("COMMIT").await.unwrap();
            assert!(store.dequeue(&request).await.unwrap().is_empty(), "{what}");
            assert!(leases(&store, &schema).await.contains(&(2, true)), "{what}");
        }
    }
}
