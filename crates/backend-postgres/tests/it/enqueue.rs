//! Batches, and the policies of their queues.

use diesel::sql_types::{Integer, Text};
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use leasehold_core::{NewJob, Store};
use leasehold_postgres::PgStore;

/// `enqueue_v2` reads one field of a policy by itself: it must come to what effective_policy() comes to (P8, E12).
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_has_the_attempts_that_the_policies_say() {
    #[derive(diesel::QueryableByName, Debug, PartialEq)]
    struct Attempts {
        #[diesel(sql_type = Text)]
        queue_name: String,
        #[diesel(sql_type = Integer)]
        max_attempts: i32,
        #[diesel(sql_type = Integer)]
        by_policy: i32,
    }
    let schema = crate::support::fresh_schema();
    let url = crate::support::url("LEASEHOLD_TEST_POSTGRES_URL");
    let store = PgStore::builder().schema(schema.clone()).connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let mut conn = store.pool().get().await.unwrap();
    let policies = format!(
        "INSERT INTO {schema}.job_queue_config (pattern, max_attempts, paused)
         VALUES ('own', 2, NULL), ('a:*', 3, NULL), ('a:b:*', 4, NULL), ('a:b:own', 6, NULL), ('a:b:c:*', NULL, true),
                ('a:b:silent', NULL, true), ('silent', NULL, true)"
    );
    conn.batch_execute(&policies).await.unwrap();
    let expected = [
        ("own", 2),
        ("other", 5),
        ("a:x", 3),
        ("a:b:x", 4),
        ("a:b:own", 6),
        ("a:b:c:x", 4),
        ("a:b:silent", 4),
        ("silent", 5),
        ("own", 2),
    ];
    let jobs: Vec<_> =
        expected.iter().map(|(queue, _)| NewJob::builder(*queue, "k").build().unwrap()).collect();
    store.enqueue(&jobs).await.unwrap();
    let asked = format!(
        "SELECT j.queue_name, j.max_attempts, coalesce(p.max_attempts, 5) AS by_policy
         FROM {schema}.job_queue j CROSS JOIN LATERAL {schema}.effective_policy(j.queue_name) p ORDER BY j.id"
    );
    let found: Vec<Attempts> = diesel::sql_query(asked).load(&mut conn).await.unwrap();
    let expected: Vec<Attempts> = expected
        .iter()
        .map(|(queue, attempts)| Attempts {
            queue_name: (*queue).to_owned(),
            max_attempts: *attempts,
            by_policy: *attempts,
        })
        .collect();
    assert_eq!(found, expected);
    let own = NewJob::builder("own", "k").max_attempts(9).build().unwrap();
    let ids = store.enqueue(&[own, jobs[0].clone()]).await.unwrap();
    let asked = format!(
        "SELECT j.queue_name, j.max_attempts, 0 AS by_policy FROM {schema}.job_queue j WHERE j.id >= {} ORDER BY j.id",
        ids[0].id
    );
    let found: Vec<Attempts> = diesel::sql_query(asked).load(&mut conn).await.unwrap();
    assert_eq!(found.iter().map(|row| row.max_attempts).collect::<Vec<_>>(), [9, 2]);
}
