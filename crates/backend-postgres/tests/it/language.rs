//! A server whose messages are German: what an error means to the caller does not depend on the words.

use std::error::Error as StdError;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use diesel::sql_types::BigInt;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::pooled_connection::deadpool::Pool;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use leasehold_core::{NewJob, Store, StoreError};
use leasehold_postgres::{PgStore, Schema, WakeupMode};
use leasehold_servers::Postgres;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Much longer than anything here takes: a test that is wrong fails, and does not hang.
const DEADLINE: Duration = Duration::from_secs(30);

/// A job of such a kind makes its statement fail. `{lock}` is a number of the schema's own.
const PROVOKE: &str = "
    CREATE TABLE {schema}.row (id integer PRIMARY KEY);
    INSERT INTO {schema}.row VALUES (1);
    GRANT ALL ON {schema}.row TO {schema};
    CREATE FUNCTION {schema}.lock_late() RETURNS void LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$ BEGIN
        PERFORM pg_advisory_xact_lock({lock}, 2);
    END $$;
    CREATE ROLE {schema}_poor;
    CREATE FUNCTION {schema}.denied() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
        PERFORM pg_read_file('PG_VERSION');
    END $$;
    ALTER FUNCTION {schema}.denied() OWNER TO {schema}_poor;
    CREATE FUNCTION {schema}.provoke() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        CASE NEW.kind
        WHEN 'cancel' THEN PERFORM pg_cancel_backend(pg_backend_pid()); PERFORM pg_sleep(30);
        WHEN 'deadlock' THEN PERFORM pg_advisory_xact_lock({lock}, 1);
            WHILE NOT EXISTS (SELECT FROM pg_locks WHERE classid = {lock} AND NOT granted) LOOP END LOOP;
            PERFORM pg_advisory_xact_lock({lock}, 2);
        WHEN 'end' THEN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(30);
        WHEN 'late' THEN PERFORM {schema}.lock_late();
        WHEN 'denied' THEN PERFORM {schema}.denied();
        WHEN 'serialize' THEN PERFORM pg_advisory_xact_lock({lock}, 2); UPDATE {schema}.row SET id = id;
        WHEN 'sleep' THEN PERFORM pg_sleep(30);
        WHEN 'twice' THEN INSERT INTO {schema}.row VALUES (1);
        ELSE NULL;
        END CASE;
        RETURN NEW;
    END $$;
    CREATE TRIGGER provoke BEFORE INSERT ON {schema}.job_queue FOR EACH ROW EXECUTE FUNCTION {schema}.provoke()";

fn server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(|| Postgres::start_german(&[("deadlock_timeout", "100ms")]).unwrap())
}

/// A schema on the German server, and a role of its own that is no superuser.
struct World {
    schema: Schema,
    lock: u32,
    admin: AsyncPgConnection,
}

impl World {
    async fn new() -> Self {
        let schema = crate::support::fresh_schema();
        let lock = schema.as_str().rsplit('_').next().unwrap().parse().unwrap();
        let admin = AsyncPgConnection::establish(&server().url()).await.unwrap();
        let mut world = Self { schema, lock, admin };
        world.assert_german().await;
        // No member of the superuser's role either: it would have the superuser's rights on settings.
        world.run("CREATE ROLE {schema} LOGIN; GRANT CREATE ON DATABASE leasehold TO {schema}").await;
        let store = world.builder().connect(&world.url("")).await.unwrap();
        store.migrate().await.unwrap();
        world.run(PROVOKE).await;
        world
    }

    /// The server really speaks German to a session that sets nothing.
    async fn assert_german(&mut self) {
        let error = self.admin.batch_execute("SELECT 1 / 0").await.unwrap_err();
        assert_eq!(error.to_string(), "Division durch Null");
    }

    /// The URL for the role that is no superuser.
    fn url(&self, options: &str) -> String {
        format!("{}?{options}", server().url().replace("leasehold@", &format!("{}@", self.schema)))
    }

    fn builder(&self) -> leasehold_postgres::PgStoreBuilder {
        PgStore::builder().schema(self.schema.clone()).pool_size(2)
    }

    async fn run(&mut self, sql: &str) {
        let sql = sql.replace("{schema}", self.schema.as_str()).replace("{lock}", &self.lock.to_string());
        self.admin.batch_execute(&sql).await.unwrap();
    }

    /// Returns when another session has the lock with this number, or waits for it.
    async fn wait_for_a_lock(&mut self, number: u32, granted: bool) {
        #[derive(diesel::QueryableByName)]
        struct Waiting {
            #[diesel(sql_type = BigInt)]
            count: i64,
        }
        let asked = format!(
            "SELECT count(*) FROM pg_locks
             WHERE locktype = 'advisory' AND classid = {} AND objid = {number} AND granted = {granted}",
            self.lock
        );
        let start = Instant::now();
        while diesel::sql_query(&asked).get_result::<Waiting>(&mut self.admin).await.unwrap().count == 0 {
            assert!(start.elapsed() < DEADLINE, "no statement has come to the lock");
        }
    }

    /// What a job of this kind is answered, while the administrator holds the lock that it may want.
    async fn provoke(&mut self, store: &PgStore, kind: &str) -> StoreError {
        self.run("SELECT pg_advisory_lock({lock}, 2)").await;
        let (job, store) = (NewJob::builder("q", kind).build().unwrap(), store.clone());
        let call = tokio::spawn(async move { store.enqueue(&[job]).await });
        match kind {
            "deadlock" => {
                self.wait_for_a_lock(1, true).await;
                // The statement waits when this session does. It looks for the deadlock first, and so is the one that the server gives up on.
                self.run("SET deadlock_timeout = '30s'; SELECT pg_advisory_lock({lock}, 1)").await;
            }
            "serialize" => {
                self.wait_for_a_lock(2, false).await;
                self.run("UPDATE {schema}.row SET id = id; SELECT pg_advisory_unlock({lock}, 2)").await;
            }
            _ => {}
        }
        let error = call.await.unwrap().unwrap_err();
        self.run("SELECT pg_advisory_unlock_all()").await;
        error
    }

    /// What a store answers if it can tell all errors apart.
    async fn assert_told_apart(&mut self, store: &PgStore) {
        for (kind, words) in
            [("cancel", "user request"), ("deadlock", "deadlock detected"), ("late", "lock timeout")]
        {
            let error = self.provoke(store, kind).await;
            assert!(matches!(error, StoreError::Unavailable { .. }), "{kind}: {error:?}");
            assert!(causes(&error).contains(words), "{kind}: {error:?}");
        }
        self.assert_kinds(store).await;
    }

    /// What a store answers in any language.
    async fn assert_kinds(&mut self, store: &PgStore) {
        let error = self.provoke(store, "end").await;
        assert!(matches!(error, StoreError::Unknown { .. }), "{error:?}");
        for kind in ["twice", "denied"] {
            let error = self.provoke(store, kind).await;
            assert!(matches!(error, StoreError::Backend { .. }), "{kind}: {error:?}");
        }
        assert!(store.enqueue(&[NewJob::builder("q", "k").build().unwrap()]).await.is_ok());
    }
}

fn causes(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        write!(text, ": {error}").unwrap();
        cause = error.source();
    }
    text
}

/// Keeps what is logged as a warning.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Visit for Warnings {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if let Some(line) = self.0.lock().unwrap().last_mut() {
            write!(line, "{field}={value:?} ").unwrap();
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("leasehold") && *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        self.0.lock().unwrap().push(String::new());
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Warnings {
    /// Those about the language.
    fn of_language(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().filter(|line| line.contains("lc_messages")).cloned().collect()
    }
}

/// A superuser's sessions are set to English words.
#[tokio::test]
async fn a_superuser() {
    let mut world = World::new().await;
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let store = world.builder().connect(&server().url()).await.unwrap();
    world.assert_told_apart(&store).await;
    assert_eq!(warnings.of_language(), [""; 0]);
}

/// So are those of a role that was allowed to.
#[tokio::test]
async fn a_role_with_the_right_to_set_the_language() {
    let mut world = World::new().await;
    world.run("GRANT SET ON PARAMETER lc_messages TO {schema}").await;
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let store = world.builder().connect(&world.url("")).await.unwrap();
    world.assert_told_apart(&store).await;
    assert_eq!(warnings.of_language(), [""; 0]);
}

/// Behind PgBouncer nothing is set on a session. The setting of the role holds there, and on a pool of the user's.
#[tokio::test]
async fn a_role_whose_language_is_english() {
    let mut world = World::new().await;
    world.run("ALTER ROLE {schema} SET lc_messages = 'C'").await;
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let store = world.builder().wakeups(WakeupMode::Local).connect(&world.url("")).await.unwrap();
    world.assert_told_apart(&store).await;
    let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(world.url(""));
    let store = world.builder().from_pool(Pool::builder(manager).max_size(2).build().unwrap());
    world.assert_told_apart(&store).await;
    assert_eq!(warnings.of_language(), [""; 0]);
}

/// A role that may not set it, by a pool of the store's, behind PgBouncer, and by a pool of the user's. It works, and a warning says once how
/// to allow it; what the driver tells apart is told apart, and so is the end of a session.
#[tokio::test]
async fn a_role_without_the_right() {
    let mut world = World::new().await;
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    for mode in [WakeupMode::Notify, WakeupMode::Local] {
        let store = world.builder().wakeups(mode).connect(&world.url("")).await.unwrap();
        let told = warnings.of_language();
        assert_eq!(told.len(), 1, "{told:?}");
        let remedy = format!("ALTER ROLE \"{}\" SET lc_messages = 'C'", world.schema);
        assert!(told[0].contains(&remedy) && told[0].contains("de_DE.UTF-8"), "{told:?}");
        let error = world.provoke(&store, "late").await;
        assert!(matches!(error, StoreError::Backend { .. }), "{error:?}");
        assert!(causes(&error).contains("storniere Anfrage"), "{}", causes(&error));
        world.assert_kinds(&store).await;
        assert_eq!(warnings.of_language().len(), 1);
        warnings.0.lock().unwrap().clear();
    }
    let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(world.url(""));
    let store = world.builder().from_pool(Pool::builder(manager).max_size(2).build().unwrap());
    world.assert_kinds(&store).await;
}

/// Timeouts of the role, read-only sessions and snapshots, each in a session that has them by default.
#[tokio::test]
async fn sessions_with_other_settings() {
    let mut world = World::new().await;
    world.run("GRANT SET ON PARAMETER lc_messages TO {schema}").await;
    let cases = [
        ("statement_timeout%3D200ms", WakeupMode::Notify, "sleep"),
        ("default_transaction_read_only%3Don", WakeupMode::Notify, "k"),
        // Own sessions are at READ COMMITTED otherwise.
        ("default_transaction_isolation%3Drepeatable%5C%20read", WakeupMode::Local, "serialize"),
    ];
    for (setting, mode, kind) in cases {
        let url = world.url(&format!("options=-c%20{setting}"));
        let store = world.builder().wakeups(mode).connect(&url).await.unwrap();
        let error = world.provoke(&store, kind).await;
        assert!(matches!(error, StoreError::Unavailable { .. }), "{setting}: {error:?}");
    }
}

#[tokio::test]
async fn tables_that_are_missing() {
    let world = World::new().await;
    let store = PgStore::builder().schema(crate::support::fresh_schema());
    let store = store.connect(&server().url()).await.unwrap();
    let error = store.enqueue(&[NewJob::builder("q", "k").build().unwrap()]).await.unwrap_err();
    assert!(matches!(error, StoreError::Backend { .. }), "{error:?}");
    assert!(causes(&error).contains("was PgStore::migrate run?"), "{}", causes(&error));
    drop(world);
}

/// tokio-postgres and sqlx give the SQLSTATE, so it goes by that on the user's own sessions; diesel-async does not.
#[cfg(all(feature = "sqlx", feature = "tokio-postgres"))]
#[tokio::test]
async fn a_users_transaction() {
    use diesel_async::{AnsiTransactionManager, TransactionManager};
    use leasehold_core::TxStore;
    use sqlx::Connection;

    let mut world = World::new().await;
    let store = world.builder().connect(&server().url()).await.unwrap();
    let missing =
        PgStore::builder().schema(crate::support::fresh_schema()).connect(&server().url()).await.unwrap();
    world.run("SELECT pg_advisory_lock({lock}, 2)").await;
    let late = [NewJob::builder("q", "late").build().unwrap()];

    let (mut client, connection) =
        tokio_postgres::connect(&world.url(""), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut tx = client.transaction().await.unwrap();
    let error = store.enqueue_in(&mut tx, &late).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    assert!(causes(&error).contains("storniere Anfrage"), "{}", causes(&error));
    tx.rollback().await.unwrap();
    let mut tx = client.transaction().await.unwrap();
    let error = missing.enqueue_in(&mut tx, &late).await.unwrap_err();
    assert!(causes(&error).contains("was PgStore::migrate run?"), "{}", causes(&error));

    let mut conn = sqlx::PgConnection::connect(&world.url("")).await.unwrap();
    let mut tx = conn.begin().await.unwrap();
    let error = store.enqueue_in(&mut *tx, &late).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    assert!(causes(&error).contains("storniere Anfrage"), "{}", causes(&error));
    tx.rollback().await.unwrap();
    let mut tx = conn.begin().await.unwrap();
    let error = missing.enqueue_in(&mut *tx, &late).await.unwrap_err();
    assert!(causes(&error).contains("was PgStore::migrate run?"), "{}", causes(&error));

    let mut conn = AsyncPgConnection::establish(&world.url("")).await.unwrap();
    AnsiTransactionManager::begin_transaction(&mut conn).await.unwrap();
    let end = [NewJob::builder("q", "end").build().unwrap()];
    let error = store.enqueue_in(&mut conn, &end).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
}
