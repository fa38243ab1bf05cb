//! Making the tables: by many at once, by hand, and not over those of a newer version.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod support;

use diesel_async::SimpleAsyncConnection;
use leasehold_core::{BatchSize, Dequeue, NewJob, Store, StoreError};
use leasehold_postgres::PgStore;

#[tokio::test(flavor = "multi_thread")]
async fn ten_processes_migrate_at_once() {
    let url = support::url("LEASEHOLD_TEST_POSTGRES_URL");
    let schema = support::fresh_schema();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let (url, schema) = (url.clone(), schema.clone());
        tasks.spawn(async move {
            let store = PgStore::builder().schema(schema).connect(&url).await?;
            store.migrate().await?;
            store.migrate().await?;
            store.enqueue(&[NewJob::builder("q", "k").build()?]).await
        });
    }
    while let Some(done) = tasks.join_next().await {
        assert_eq!(done.unwrap().unwrap().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tables_of_a_newer_version_are_refused() {
    let url = support::url("LEASEHOLD_TEST_POSTGRES_URL");
    let schema = support::fresh_schema();
    let store = PgStore::builder().schema(schema.clone()).connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let newer = format!("INSERT INTO {schema}.job_migration (version, name) VALUES (999, 'from the future')");
    store.pool().get().await.unwrap().batch_execute(&newer).await.unwrap();
    let refused = [
        store.migrate().await.unwrap_err(),
        PgStore::builder().schema(schema).connect(&url).await.unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, StoreError::Conflict { .. }), "{error}");
        assert!(error.to_string().contains("version 999"), "{error}");
    }
    // The connection and its lock were given back.
    store.now().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_script_makes_the_same_tables() {
    let url = support::url("LEASEHOLD_TEST_POSTGRES_URL");
    let schema = support::fresh_schema();
    let store = PgStore::builder().schema(schema.clone()).connect(&url).await.unwrap();
    let script = PgStore::migrations_sql(&schema);
    store.pool().get().await.unwrap().batch_execute(&script).await.unwrap();
    store.migrate().await.unwrap();
    store.enqueue(&[NewJob::builder("q", "k").build().unwrap()]).await.unwrap();
    assert_eq!(store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tables_the_error_says_what_to_do() {
    let url = support::url("LEASEHOLD_TEST_POSTGRES_URL");
    let schema = support::fresh_schema();
    let store = PgStore::builder().schema(schema.clone()).connect(&url).await.unwrap();
    let says_it = async |what: &str| {
        let errors = [
            store.enqueue(&[NewJob::builder("q", "k").build().unwrap()]).await.unwrap_err(),
            store.reclaim(BatchSize::ONE).await.unwrap_err(),
        ];
        for error in errors {
            let source = std::error::Error::source(&error).unwrap().to_string();
            assert!(source.contains("migrate"), "{what}: {error}: {source}");
        }
    };
    says_it("no schema").await;
    let create = format!("CREATE SCHEMA {schema}");
    store.pool().get().await.unwrap().batch_execute(&create).await.unwrap();
    says_it("an empty schema").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_make_tables_can_see_that_they_are_there() {
    let url = support::url("LEASEHOLD_TEST_POSTGRES_URL");
    let schema = support::fresh_schema();
    let between = if url.contains('?') { '&' } else { '?' };
    let reading = format!("{url}{between}options=-c%20default_transaction_read_only%3Don");
    let reader = PgStore::builder().schema(schema.clone()).connect(&reading).await.unwrap();
    reader.migrate().await.unwrap_err();
    let writer = PgStore::builder().schema(schema).connect(&url).await.unwrap();
    writer.migrate().await.unwrap();
    reader.migrate().await.unwrap();
}
