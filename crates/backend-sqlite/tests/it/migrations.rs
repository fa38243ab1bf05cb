//! Making the tables: by many at once, by hand, from those of the first version, and not over those that need a newer program.

use diesel::connection::SimpleConnection;
use leasehold_core::{BatchSize, Dequeue, NewJob, Prune, SettleOutcome, Store, StoreError, Verdict};
use leasehold_sqlite::{SqliteStore, TablePrefix};

#[tokio::test(flavor = "multi_thread")]
async fn ten_stores_migrate_at_once() {
    let directory = crate::support::Directory::new();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let file = directory.file();
        tasks.spawn(async move {
            let store = SqliteStore::connect(&file).await?;
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
async fn tables_that_need_a_newer_program_are_refused() {
    let (store, directory) = crate::support::fresh_store().await;
    let mut beside = crate::support::plain(&directory.file());
    let newer = "INSERT INTO job_migration (version, name, oldest) VALUES (998, 'from the future', 1)";
    beside.batch_execute(newer).unwrap();
    store.migrate().await.unwrap();
    SqliteStore::connect(&directory.file()).await.unwrap().policies().await.unwrap();

    let newer = "INSERT INTO job_migration (version, name, oldest) VALUES (999, 'from the future', 999)";
    beside.batch_execute(newer).unwrap();
    let refused =
        [store.migrate().await.unwrap_err(), SqliteStore::connect(&directory.file()).await.unwrap_err()];
    for error in refused {
        assert!(matches!(error, StoreError::Conflict { .. }), "{error}");
        assert!(error.to_string().contains("version 999"), "{error}");
    }
    store.policies().await.unwrap();
}

/// What the first version made, with a job in it: its ledger kept no `oldest`.
#[tokio::test(flavor = "multi_thread")]
async fn the_tables_of_version_1_are_migrated_with_their_jobs() {
    let directory = crate::support::Directory::new();
    let mut beside = crate::support::plain(&directory.file());
    beside.batch_execute(include_str!("version_1.sql")).unwrap();
    let job = "INSERT INTO job_queue (queue_name, kind, priority, payload, headers, max_attempts, available_at, created_at, updated_at)
               VALUES ('q', 'k', 0, '1', '{}', 5, 0, 0, 0)";
    beside.batch_execute(job).unwrap();
    let key = |key: &str| format!("INSERT INTO job_idempotency (key, created_at) VALUES ('{key}', 0)");
    beside.batch_execute(&key("before")).unwrap();
    let store = SqliteStore::connect(&directory.file()).await.unwrap();
    store.migrate().await.unwrap();
    store.migrate().await.unwrap();
    let jobs = store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap();
    assert_eq!(jobs.len(), 1);
    let outcomes = store.settle(&[(jobs[0].receipt(), Verdict::done())]).await.unwrap();
    assert!(matches!(outcomes[..], [SettleOutcome::Settled(_)]), "{outcomes:?}");
    beside.batch_execute("SELECT oldest FROM job_migration").unwrap();

    // Keys of programs of version 1 are kept for 30 days from the migration on, or from when they were taken.
    beside.batch_execute(&key("after")).unwrap();
    let prune = Prune::older_than(std::time::Duration::from_secs(3600), BatchSize::MAX).unwrap();
    for (days, forgotten) in [(29, 0), (1, 2)] {
        let age = format!("UPDATE job_idempotency SET kept_until = kept_until - {days} * 86400000000");
        beside.batch_execute(&age).unwrap();
        assert_eq!(store.prune(&prune).await.unwrap(), forgotten, "after another {days} days");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_script_makes_the_same_tables() {
    let directory = crate::support::Directory::new();
    let prefix = TablePrefix::new("app_").unwrap();
    let script = SqliteStore::migrations_sql(&prefix);
    crate::support::plain(&directory.file()).batch_execute(&script).unwrap();
    let store = SqliteStore::builder().prefix(prefix).connect(&directory.file()).await.unwrap();
    store.migrate().await.unwrap();
    store.enqueue(&[NewJob::builder("q", "k").build().unwrap()]).await.unwrap();
    assert_eq!(store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_prefixes_are_two_queues() {
    let directory = crate::support::Directory::new();
    let mut stores = Vec::new();
    for prefix in ["one_", "two_"] {
        let builder = SqliteStore::builder().prefix(TablePrefix::new(prefix).unwrap());
        let store = builder.connect(&directory.file()).await.unwrap();
        store.migrate().await.unwrap();
        stores.push(store);
    }
    stores[0].enqueue(&[NewJob::builder("q", "k").build().unwrap()]).await.unwrap();
    let request = Dequeue::new("q", "w").unwrap();
    assert_eq!(stores[1].dequeue(&request).await.unwrap().len(), 0);
    assert_eq!(stores[0].dequeue(&request).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tables_the_error_says_what_to_do() {
    let directory = crate::support::Directory::new();
    let store = SqliteStore::connect(&directory.file()).await.unwrap();
    let errors = [
        store.enqueue(&[NewJob::builder("q", "k").build().unwrap()]).await.unwrap_err(),
        store.reclaim(BatchSize::ONE).await.unwrap_err(),
        store.policies().await.unwrap_err(),
    ];
    for error in errors {
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("migrate"), "{error}: {source}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_database_is_refused() {
    let directory = crate::support::Directory::new();
    std::fs::write(directory.file(), "this is no database, however long one looks at it".repeat(100))
        .unwrap();
    let error = SqliteStore::connect(&directory.file()).await.unwrap_err();
    assert!(matches!(error, StoreError::Backend { .. }), "{error}");
    let error = SqliteStore::connect("/nowhere/at/all/jobs.db").await.unwrap_err();
    assert!(matches!(error, StoreError::Backend { .. }), "{error}");
}
