//! Single jobs that are enqueued at the same time share a statement.

use std::collections::BTreeSet;

use diesel::sql_types::BigInt;
use diesel_async::RunQueryDsl;
use futures_util::FutureExt;
use futures_util::future::join_all;
use leasehold_core::{JobId, NewJob, Store};
use leasehold_postgres::PgStore;

#[derive(diesel::QueryableByName)]
struct Count {
    #[diesel(sql_type = BigInt)]
    count: i64,
}

#[tokio::test]
async fn fifty_callers_are_three_transactions() {
    let schema = crate::support::fresh_schema();
    let url = crate::support::url("LEASEHOLD_TEST_POSTGRES_URL");
    let store = PgStore::builder().schema(schema.clone()).pool_size(2).connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let jobs: Vec<[NewJob; 1]> = (0..50)
        .map(|n| [NewJob::builder(format!("q{}", n % 7), "work").payload(&n).build().unwrap()])
        .collect();
    // No statement can begin before all fifty have called: the pool has two connections, and both are taken.
    let taken = [store.pool().get().await.unwrap(), store.pool().get().await.unwrap()];
    let mut calls: Vec<_> = jobs.iter().map(|job| store.enqueue(job)).collect();
    for call in &mut calls {
        assert!(call.now_or_never().is_none(), "a connection was left");
    }
    drop(taken);
    let answers = join_all(calls).await;
    let mut ids: BTreeSet<JobId> = BTreeSet::new();
    for (answer, [job]) in answers.into_iter().zip(&jobs) {
        let [enqueued] = answer.unwrap().try_into().unwrap();
        ids.insert(enqueued.id);
        let stored = store.get(enqueued.id).await.unwrap().unwrap().live().unwrap();
        assert_eq!((&stored.queue, &stored.payload), (job.queue(), job.payload()), "somebody else's answer");
    }
    assert_eq!(ids.len(), 50);
    let transactions = format!("SELECT count(DISTINCT xmin::text) AS count FROM {schema}.job_queue");
    let mut conn = store.pool().get().await.unwrap();
    let counted: Count = diesel::sql_query(transactions).get_result(&mut conn).await.unwrap();
    assert_eq!(counted.count, 3, "two go at once, and all who wait go together");
}
