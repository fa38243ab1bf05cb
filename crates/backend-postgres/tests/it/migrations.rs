//! Making the tables: by many at once, by hand, from those of an older version, and not over those that need a newer program.

use std::time::Duration;

use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use leasehold_core::{
    BatchSize, Dequeue, Epoch, JobId, NewJob, Prune, Receipt, Record, Redrive, SettleOutcome, Store,
    StoreError, Verdict,
};
use leasehold_postgres::PgStore;

#[tokio::test(flavor = "multi_thread")]
async fn ten_processes_migrate_at_once() {
    let url = crate::support::url("LEASEHOLD_TEST_POSTGRES_URL");
    let schema = crate::support::fresh_schema();
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

/// Whoever may create objects in a schema of the caller's path must not get between a function and the server's own operators.
#[tokio::test(flavor = "multi_thread")]
async fn every_function_has_a_search_path_of_its_own() {
    #[derive(diesel::QueryableByName)]
    struct Function {
        #[diesel(sql_type = diesel::sql_types::Text)]
        name: String,
    }
    let url = crate::support::url("LEASEHOLD_TEST_POSTGRES_URL");
    let schema = crate::support::fresh_schema();
    let store = PgStore::builder().schema(schema.clone()).connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let text = format!(
        "SELECT p.proname::text AS name FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
         WHERE p.pronamespace = '{schema}'::regnamespace AND l.lanname = 'plpgsql'
           AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false)"
    );
    let mut conn = store.pool().get().await.unwrap();
    let without: Vec<Function> = diesel::sql_query(text).load(&mut conn).await.unwrap();
    let without: Vec<String> = without.into_iter().map(|function| function.name).collect();
    assert!(without.is_empty(), "{without:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_need_a_newer_program_are_refused() {
    let url = crate::support::url("LEASEHOLD_TEST_POSTGRES_URL");
    let schema = crate::support::fresh_schema();
    let store = PgStore::builder().schema(schema.clone()).connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let say = async |text: &str| {
        let text = text.replace("{schema}", schema.as_str());
        store.pool().get().await.unwrap().batch_execute(&text).await.unwrap();
    };
    say("INSERT INTO {schema}.job_migration (version, name, oldest) VALUES (998, 'from the future', 2)")
        .await;
    store.migrate().await.unwrap();
    let beside = PgStore::builder().schema(schema.clone()).connect(&url).await.unwrap();
    beside.enqueue(&[NewJob::builder("q", "k").build().unwrap()]).await.unwrap();

    say("INSERT INTO {schema}.job_migration (version, name, oldest) VALUES (999, 'from the future', 999)")
        .await;
    let refused = [
        store.migrate().await.unwrap_err(),
        PgStore::builder().schema(schema.clone()).connect(&url).await.unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, StoreError::Conflict { .. }), "{error}");
        assert!(error.to_string().contains("version 999"), "{error}");
    }
    // The connection and its lock were given back.
    store.now().await.unwrap();
}

/// What version 1 made, with jobs in it: a program of this version migrates it, and nothing is lost.
#[tokio::test(flavor = "multi_thread")]
async fn the_tables_of_version_1_are_migrated_with_their_jobs() {
    let url = crate::support::url("LEASEHOLD_TEST_POSTGRES_URL");
    let schema = crate::support::fresh_schema();
    let store = PgStore::builder().schema(schema.clone()).connect(&url).await.unwrap();
    let mut conn = store.pool().get().await.unwrap();
    let old = include_str!("version_1.sql").replace("{schema}", &format!("\"{schema}\""));
    conn.batch_execute(&format!("BEGIN; {old} COMMIT;")).await.unwrap();
    let jobs = format!(
        "INSERT INTO {schema}.job_queue (queue_name, kind, priority, payload, headers, attempts, max_attempts, available_at,
                                         lease_until, locked_by, lease_epoch, created_at, updated_at)
         VALUES ('q', 'ready', 0, '1', '{{}}', 0, 5, now(), NULL, NULL, 0, now(), now()),
                ('q', 'leased', 0, '2', '{{}}', 1, 5, now(), now() + interval '1 hour', 'old worker', 1, now(), now())"
    );
    conn.batch_execute(&jobs).await.unwrap();
    let dead = format!(
        "INSERT INTO {schema}.job_history (id, queue_name, kind, priority, payload, headers, attempts, max_attempts, lease_epoch, status_final,
                                           last_error, redrives, created_at, finished_at)
         VALUES (3, 'dead', 'dead', 0, '3', '{{}}', 5, 5, 5, 'dead_letter', '\"no\"', 0, now(), now())"
    );
    conn.batch_execute(&dead).await.unwrap();
    let key = |key: &str| format!("INSERT INTO {schema}.job_idempotency (key) VALUES ('{key}')");
    conn.batch_execute(&key("before")).await.unwrap();
    let leased = Receipt { job: JobId::new(2), epoch: Epoch::ZERO.next() };

    // Before the migration the error says what to do, and afterwards the lease that an old program granted is good.
    let error = store.settle(&[(leased, Verdict::done())]).await.unwrap_err();
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("migrate"), "{error}");
    let error = store.prune(&Prune::by_retention(BatchSize::ONE)).await.unwrap_err();
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("migrate"), "{error}");
    store.migrate().await.unwrap();
    store.migrate().await.unwrap();
    let outcomes = store.settle(&[(leased, Verdict::done())]).await.unwrap();
    assert!(matches!(outcomes[..], [SettleOutcome::Settled(_)]), "{outcomes:?}");
    let ready = store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap();
    assert_eq!(ready.iter().map(|job| job.kind.as_str()).collect::<Vec<_>>(), ["ready"]);
    let redriven = store.redrive(&Redrive::all(BatchSize::ONE)).await.unwrap();
    assert_eq!(redriven.jobs, [JobId::new(3)]);

    // A program of version 1 that is still running calls the functions that it knows.
    let done =
        format!("SELECT * FROM {schema}.settle_done(ARRAY[1::bigint], ARRAY[1::bigint], ARRAY['null'])");
    conn.batch_execute(&done).await.unwrap();
    assert!(matches!(store.get(JobId::new(1)).await.unwrap(), Some(Record::Finished(_))));

    // Keys of programs of version 1 are kept for 30 days from the migration on, or from when they were taken.
    conn.batch_execute(&key("after")).await.unwrap();
    let prune = Prune::older_than(Duration::from_secs(3600), BatchSize::MAX).unwrap();
    for (days, forgotten) in [(29, 0), (1, 2)] {
        let age =
            format!("UPDATE {schema}.job_idempotency SET kept_until = kept_until - interval '{days} days'");
        conn.batch_execute(&age).await.unwrap();
        assert_eq!(store.prune(&prune).await.unwrap(), forgotten, "after another {days} days");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_script_makes_the_same_tables() {
    let url = crate::support::url("LEASEHOLD_TEST_POSTGRES_URL");
    let schema = crate::support::fresh_schema();
    let store = PgStore::builder().schema(schema.clone()).connect(&url).await.unwrap();
    let script = PgStore::migrations_sql(&schema);
    store.pool().get().await.unwrap().batch_execute(&script).await.unwrap();
    store.migrate().await.unwrap();
    store.enqueue(&[NewJob::builder("q", "k").build().unwrap()]).await.unwrap();
    assert_eq!(store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tables_the_error_says_what_to_do() {
    let url = crate::support::url("LEASEHOLD_TEST_POSTGRES_URL");
    let schema = crate::support::fresh_schema();
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
    let url = crate::support::url("LEASEHOLD_TEST_POSTGRES_URL");
    let schema = crate::support::fresh_schema();
    let between = if url.contains('?') { '&' } else { '?' };
    let reading = format!("{url}{between}options=-c%20default_transaction_read_only%3Don");
    let reader = PgStore::builder().schema(schema.clone()).connect(&reading).await.unwrap();
    reader.migrate().await.unwrap_err();
    let writer = PgStore::builder().schema(schema).connect(&url).await.unwrap();
    writer.migrate().await.unwrap();
    reader.migrate().await.unwrap();
}
