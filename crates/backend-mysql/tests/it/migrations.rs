//! Making the tables: by many at once, broken off halfway, by hand, from those of the first
//! version, and not over those that need a newer program.

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use leasehold_core::{BatchSize, Dequeue, NewJob, Prune, SettleOutcome, Store, StoreError, Verdict};
use leasehold_mysql::{MysqlStore, TablePrefix};

async fn works(store: &MysqlStore) {
    store.enqueue(&[NewJob::builder("q", "k").build().unwrap()]).await.unwrap();
    assert_eq!(store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_stores_migrate_at_once() {
    for variable in crate::support::BOTH {
        let fresh = crate::support::Fresh::on(variable).await;
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let url = fresh.url.clone();
            tasks.spawn(async move {
                let store = MysqlStore::connect(&url).await?;
                store.migrate().await?;
                store.migrate().await?;
                store.enqueue(&[NewJob::builder("q", "k").build()?]).await
            });
        }
        while let Some(done) = tasks.join_next().await {
            assert_eq!(done.unwrap().unwrap().len(), 1);
        }
        fresh.drop().await;
    }
}

/// After each statement of the script in turn the power goes: the ledger knows of it or not, and either way `migrate` goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_was_broken_off_is_taken_up() {
    for variable in crate::support::BOTH {
        let script = MysqlStore::migrations_sql(&TablePrefix::default());
        let statements: Vec<&str> =
            script.split(';').map(str::trim).filter(|text| !text.is_empty()).collect();
        assert!(statements.len() > 10);
        for done in 0..=statements.len() {
            let fresh = crate::support::Fresh::on(variable).await;
            let mut conn = crate::support::plain(&fresh.url).await;
            for statement in &statements[..done] {
                conn.batch_execute(statement).await.unwrap();
            }
            let store = MysqlStore::connect(&fresh.url).await.unwrap();
            store.migrate().await.unwrap();
            works(&store).await;
            fresh.drop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_need_a_newer_program_are_refused() {
    for variable in crate::support::BOTH {
        let fresh = crate::support::Fresh::on(variable).await;
        let store = fresh.store().await;
        let mut beside = crate::support::plain(&fresh.url).await;
        let newer = "INSERT INTO job_migration VALUES (998, 1, 'from the future', UTC_TIMESTAMP(6), 1)";
        beside.batch_execute(newer).await.unwrap();
        store.migrate().await.unwrap();
        works(&MysqlStore::connect(&fresh.url).await.unwrap()).await;

        let newer = "INSERT INTO job_migration VALUES (999, 1, 'from the future', UTC_TIMESTAMP(6), 999)";
        beside.batch_execute(newer).await.unwrap();
        let refused =
            [store.migrate().await.unwrap_err(), MysqlStore::connect(&fresh.url).await.unwrap_err()];
        for error in refused {
            assert!(matches!(error, StoreError::Conflict { .. }), "{error}");
            assert!(error.to_string().contains("version 999"), "{error}");
        }
        store.policies().await.unwrap();
        fresh.drop().await;
    }
}

/// What the first version made, with a job in it: its ledger keeps no `oldest`. A newer program that has a migration adds that.
#[tokio::test(flavor = "multi_thread")]
async fn the_tables_of_version_1_are_migrated_with_their_jobs() {
    for variable in crate::support::BOTH {
        for is_broken_off in [false, true] {
            let fresh = crate::support::Fresh::on(variable).await;
            let mut conn = crate::support::plain(&fresh.url).await;
            for statement in include_str!("version_1.sql").split(';').map(str::trim) {
                if !statement.is_empty() {
                    conn.batch_execute(statement).await.unwrap();
                }
            }
            let job = "INSERT INTO job_queue (queue_name, kind, priority, payload, headers, max_attempts, available_at,
                                              created_at, updated_at)
                       VALUES ('q', 'k', 0, '1', '{}', 5, '2020-01-01', '2020-01-01', '2020-01-01')";
            conn.batch_execute(job).await.unwrap();
            conn.batch_execute(KEYED).await.unwrap();
            let key = |key: &str| {
                format!(
                    "INSERT INTO job_idempotency (idempotency_key, created_at) VALUES ('{key}', '2020-01-01')"
                )
            };
            conn.batch_execute(&key("before")).await.unwrap();
            if is_broken_off {
                conn.batch_execute("DELETE FROM job_migration WHERE step > 1").await.unwrap();
            }
            let store = MysqlStore::connect(&fresh.url).await.unwrap();
            store.migrate().await.unwrap();
            store.migrate().await.unwrap();
            has_taken_over_the_key(&store).await;
            let jobs = store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap();
            assert_eq!(jobs.len(), 1);
            let outcomes = store.settle(&[(jobs[0].receipt(), Verdict::done())]).await.unwrap();
            assert!(matches!(outcomes[..], [SettleOutcome::Settled(_)]), "{outcomes:?}");

            // Keys of programs of version 1 are kept for 30 days from the migration on, or from when they were taken.
            conn.batch_execute(&key("after")).await.unwrap();
            let prune = Prune::older_than(Duration::from_secs(3600), BatchSize::MAX).unwrap();
            for (days, forgotten) in [(29, 0), (1, 2)] {
                let age = format!("UPDATE job_idempotency SET kept_until = kept_until - INTERVAL {days} DAY");
                conn.batch_execute(&age).await.unwrap();
                assert_eq!(store.prune(&prune).await.unwrap(), forgotten, "after another {days} days");
            }
            fresh.drop().await;
        }
    }
}

/// A job with a unique key, as programs before version 4 enqueued it.
const KEYED: &str = "INSERT INTO job_queue (queue_name, kind, priority, unique_key, payload, headers, max_attempts, available_at,
                                            created_at, updated_at)
                     VALUES ('keyed', 'k', 0, 'a', '1', '{}', 5, '2020-01-01', '2020-01-01', '2020-01-01')";

/// The job with a key is live, and its key is taken until it is finished.
async fn has_taken_over_the_key(store: &MysqlStore) {
    let new = [NewJob::builder("keyed", "k").unique_key("a").build().unwrap()];
    let job = store.dequeue(&Dequeue::new("keyed", "w").unwrap()).await.unwrap().remove(0);
    let answer = store.enqueue(&new).await.unwrap()[0];
    assert!(answer.deduplicated && answer.id == job.id, "{answer:?}");
    store.settle(&[(job.receipt(), Verdict::done())]).await.unwrap();
    let answer = store.enqueue(&new).await.unwrap()[0];
    assert!(!answer.deduplicated, "{answer:?}");
}

/// Wherever the migration to version 4 is broken off: no key is lost, and no program can give one to two jobs in between.
#[tokio::test(flavor = "multi_thread")]
async fn keys_are_taken_over_wherever_the_migration_is_broken_off() {
    for variable in crate::support::BOTH {
        let script = MysqlStore::migrations_sql(&TablePrefix::default());
        let statements: Vec<&str> =
            script.split(';').map(str::trim).filter(|text| !text.is_empty()).collect();
        let first = statements.iter().position(|text| text.contains("job_unique")).unwrap();
        for done in first..=statements.len() {
            let fresh = crate::support::Fresh::on(variable).await;
            let mut conn = crate::support::plain(&fresh.url).await;
            for statement in &statements[..first] {
                conn.batch_execute(statement).await.unwrap();
            }
            conn.batch_execute(KEYED).await.unwrap();
            for statement in &statements[first..done] {
                conn.batch_execute(statement).await.unwrap();
            }
            // A program of an older version enqueues the same key: there never are two jobs with it.
            assert!(conn.batch_execute(KEYED).await.is_err(), "after {done} statements");
            let store = MysqlStore::connect(&fresh.url).await.unwrap();
            store.migrate().await.unwrap();
            has_taken_over_the_key(&store).await;
            fresh.drop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_prefixes_are_two_queues() {
    for variable in crate::support::BOTH {
        let fresh = crate::support::Fresh::on(variable).await;
        let mut stores = Vec::new();
        for prefix in ["one_", "two_"] {
            let builder = MysqlStore::builder().prefix(TablePrefix::new(prefix).unwrap());
            let store = builder.connect(&fresh.url).await.unwrap();
            store.migrate().await.unwrap();
            stores.push(store);
        }
        stores[0].enqueue(&[NewJob::builder("q", "k").build().unwrap()]).await.unwrap();
        let request = Dequeue::new("q", "w").unwrap();
        assert_eq!(stores[1].dequeue(&request).await.unwrap().len(), 0);
        assert_eq!(stores[0].dequeue(&request).await.unwrap().len(), 1);
        fresh.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tables_the_error_says_what_to_do() {
    for variable in crate::support::BOTH {
        let fresh = crate::support::Fresh::on(variable).await;
        let store = MysqlStore::connect(&fresh.url).await.unwrap();
        let errors = [
            store.enqueue(&[NewJob::builder("q", "k").build().unwrap()]).await.unwrap_err(),
            store.reclaim(BatchSize::ONE).await.unwrap_err(),
            store.policies().await.unwrap_err(),
        ];
        for error in errors {
            let source = std::error::Error::source(&error).unwrap().to_string();
            assert!(source.contains("MysqlStore::migrate"), "{source}");
        }
        fresh.drop().await;
    }
}
