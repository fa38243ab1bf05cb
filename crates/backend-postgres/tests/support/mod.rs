//! A harness for the conformance suite on a real server: a schema for each check.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use diesel::sql_types::Text;
use diesel_async::pooled_connection::deadpool::Object;
use diesel_async::{
    AnsiTransactionManager, AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection,
    TransactionManager,
};
use leasehold_conformance::{BoxError, Ending, Harness, Isolation, Transaction};
use leasehold_core::{
    Enqueued, IdempotencyKey, JobId, NewJob, Receipt, Result, Settled, Store, TxStore, Verdict,
};
use leasehold_postgres::{PgStore, PgStoreBuilder, Schema, WakeupMode};

/// The URL of a server that `cargo xtask test` has started, or that whoever runs the tests has named.
pub(crate) fn url(variable: &str) -> String {
    match std::env::var(variable) {
        Ok(url) => url,
        Err(_) => panic!(
            "{variable} is not set: run `cargo xtask test -p leasehold-postgres`, or `cargo xtask servers` and set what it prints"
        ),
    }
}

/// One server, reached directly or through PgBouncer.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) url: String,
    pub(crate) wakeups: WakeupMode,
    pub(crate) events: bool,
    /// Whether each connection has a schema in its path in which somebody has put things in the way.
    pub(crate) is_hostile: bool,
}

/// One schema, and the handles on it.
pub(crate) struct Database {
    pub(crate) schema: Schema,
    pub(crate) home: PgStore,
    handles: std::sync::Mutex<Vec<PgStore>>,
}

/// A schema that nobody else has, in this process or another.
pub(crate) fn fresh_schema() -> Schema {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    Schema::new(format!("test_{}_{count}", std::process::id())).unwrap()
}

/// A store on a new schema.
pub(crate) async fn fresh_store(url: &str) -> PgStore {
    let store = PgStore::builder().schema(fresh_schema()).connect(url).await.unwrap();
    store.migrate().await.unwrap();
    store
}

/// The names of all functions in the backend's statements and migrations, those of grammar among them.
fn functions() -> Vec<String> {
    let crate_root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut names = std::collections::BTreeSet::new();
    for folder in ["queries", "migrations"] {
        for file in std::fs::read_dir(crate_root.join(folder)).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            for (before, _) in text.match_indices('(').map(|(place, _)| text.split_at(place)) {
                let name = before.rsplit(|letter: char| !letter.is_ascii_lowercase() && letter != '_').next();
                names.extend(name.filter(|name| !name.is_empty()).map(str::to_owned));
            }
        }
    }
    names.into_iter().collect()
}

impl Server {
    /// A server that is reached directly.
    pub(crate) fn direct(name: &'static str, variable: &str) -> Self {
        Self { name, url: url(variable), wakeups: WakeupMode::Notify, events: false, is_hostile: false }
    }

    /// A server behind a PgBouncer in transaction mode, through which nobody can listen.
    pub(crate) fn bounced(name: &'static str, variable: &str) -> Self {
        Self { wakeups: WakeupMode::Local, ..Self::direct(name, variable) }
    }

    /// The same, with events.
    pub(crate) fn with_events(self) -> Self {
        Self { events: true, ..self }
    }

    /// The same, with a schema in the path of each connection that belongs to somebody else.
    pub(crate) fn on_a_hostile_path(self) -> Self {
        let separator = if self.url.contains('?') { '&' } else { '?' };
        let url = format!("{}{separator}options=-c%20search_path%3Dhostile,public", self.url);
        Self { is_hostile: true, url, ..self }
    }

    /// Sees that the schema of somebody else is there.
    async fn prepare(&self) -> Result<(), BoxError> {
        static PREPARED: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();
        if !self.is_hostile {
            return Ok(());
        }
        PREPARED
            .get_or_try_init(async || {
                let mut conn =
                    AsyncPgConnection::establish(self.url.split(['?', '&']).next().unwrap()).await?;
                let text = include_str!("hostile.sql").replace("{names}", &functions().join(","));
                conn.batch_execute(&text).await?;
                Ok::<_, BoxError>(())
            })
            .await?;
        Ok(())
    }

    fn builder(&self, schema: &Schema) -> PgStoreBuilder {
        PgStore::builder().schema(schema.clone()).pool_size(8).wakeups(self.wakeups).events(self.events)
    }
}

#[async_trait]
impl Harness for Server {
    type Database = Database;

    fn name(&self) -> &str {
        self.name
    }

    async fn create(&self) -> Result<Database, BoxError> {
        self.prepare().await?;
        let schema = fresh_schema();
        let home = self.builder(&schema).connect(&self.url).await?;
        home.migrate().await?;
        let mut conn = home.pool().get().await?;
        conn.batch_execute(&format!(
            "CREATE TABLE {schema}.ledger (entry text NOT NULL); CREATE TABLE {schema}.pair (number integer PRIMARY KEY);
             INSERT INTO {schema}.pair VALUES (1), (2)"
        ))
        .await?;
        drop(conn);
        Ok(Database { schema, home, handles: std::sync::Mutex::default() })
    }

    async fn destroy(&self, database: &Database) -> Result<(), BoxError> {
        database.handles.lock().unwrap().clear();
        let mut conn = database.home.pool().get().await?;
        conn.batch_execute(&format!("SET lock_timeout = '10s'; DROP SCHEMA {} CASCADE", database.schema))
            .await?;
        drop(conn);
        database.home.pool().close();
        Ok(())
    }

    async fn connect(&self, database: &Database) -> Result<Arc<dyn Store>, BoxError> {
        let store = self.builder(&database.schema).connect(&self.url).await?;
        database.handles.lock().unwrap().push(store.clone());
        Ok(Arc::new(store))
    }

    async fn age(&self, database: &Database, by: Duration) -> Result<(), BoxError> {
        shift(database, &format!("- interval '{} microseconds'", by.as_micros())).await
    }

    async fn set_back(&self, database: &Database, by: Duration) -> Result<bool, BoxError> {
        shift(database, &format!("+ interval '{} microseconds'", by.as_micros())).await?;
        Ok(true)
    }

    async fn finish_twin(&self, database: &Database, id: JobId) -> Result<bool, BoxError> {
        let mut conn = database.home.pool().get().await?;
        let schema = &database.schema;
        conn.batch_execute(&format!(
            "INSERT INTO {schema}.job_history (id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch,
                 status_final, last_error, redrives, created_at, started_at, finished_at)
             SELECT id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch,
                 'dead_letter', 'null', redrives, created_at, first_leased_at, statement_timestamp() FROM {schema}.job_queue WHERE id = {id}"
        ))
        .await?;
        Ok(true)
    }

    async fn begin(&self, database: &Database) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        let mut conn = database.home.pool().get().await?;
        AnsiTransactionManager::begin_transaction(&mut *conn).await?;
        Ok(Some(Box::new(Session::new(database, conn))))
    }

    async fn begin_at(
        &self,
        database: &Database,
        level: Isolation,
    ) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        let mut conn = database.home.pool().get().await?;
        AnsiTransactionManager::begin_transaction(&mut *conn).await?;
        conn.batch_execute(&set_level(level)).await?;
        Ok(Some(Box::new(Session::new(database, conn))))
    }

    async fn no_transaction(&self, database: &Database) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        let conn = database.home.pool().get().await?;
        Ok(Some(Box::new(Session::new(database, conn))))
    }

    async fn ledger(&self, database: &Database) -> Result<Vec<String>, BoxError> {
        let mut conn = database.home.pool().get().await?;
        entries(&mut conn, &database.schema).await
    }
}

async fn entries(conn: &mut AsyncPgConnection, schema: &Schema) -> Result<Vec<String>, BoxError> {
    #[derive(diesel::QueryableByName)]
    struct Entry {
        #[diesel(sql_type = Text)]
        entry: String,
    }
    let query = diesel::sql_query(format!("SELECT entry FROM {schema}.ledger"));
    let entries: Vec<Entry> = query.load(conn).await?;
    Ok(entries.into_iter().map(|entry| entry.entry).collect())
}

/// Moves every stored time.
async fn shift(database: &Database, by: &str) -> Result<(), BoxError> {
    let schema = &database.schema;
    let mut conn = database.home.pool().get().await?;
    conn.batch_execute(&format!(
        "UPDATE {schema}.job_queue SET available_at = available_at {by}, lease_until = lease_until {by},
             first_leased_at = first_leased_at {by}, created_at = created_at {by}, updated_at = updated_at {by};
         UPDATE {schema}.job_history SET created_at = created_at {by}, started_at = started_at {by},
             finished_at = finished_at {by};
         UPDATE {schema}.job_queue_limit SET full_at = full_at {by};
         UPDATE {schema}.job_idempotency SET created_at = created_at {by}, kept_until = kept_until {by};
         SELECT {schema}.count_again()"
    ))
    .await?;
    Ok(())
}

/// Sets the level of the transaction that was just begun.
pub(crate) fn set_level(level: Isolation) -> String {
    format!("SET TRANSACTION ISOLATION LEVEL {}", level.sql())
}

/// What a transaction says that is to end in this way, text by text, and whether the last of them fails. None if it cannot end so.
pub(crate) fn ending(how: Ending, schema: &Schema) -> Option<(Vec<String>, bool)> {
    let lock = |number: u8| format!("SELECT FROM {schema}.pair WHERE number = {number} FOR UPDATE");
    match how {
        Ending::Commit => Some((vec!["COMMIT".to_owned()], false)),
        Ending::Rollback => Some((vec!["ROLLBACK".to_owned()], false)),
        Ending::Failure => Some((vec!["SELECT 1 / 0".to_owned()], true)),
        Ending::Deadlock => Some((vec!["SET LOCAL deadlock_timeout = 1".to_owned(), lock(1), lock(2)], true)),
        _ => None, // What is defined is part of the transaction.
    }
}

/// Another transaction that has what [`ending`] wants in the end, and wants what it has.
pub(crate) struct Rival {
    conn: Object<AsyncPgConnection>,
    schema: Schema,
}

impl Rival {
    pub(crate) async fn new(store: &PgStore, schema: &Schema) -> Result<Self, BoxError> {
        let mut conn = store.pool().get().await?;
        conn.batch_execute(&format!(
            "BEGIN; SET LOCAL deadlock_timeout = '1h';
             SELECT FROM {schema}.pair WHERE number = 2 FOR UPDATE"
        ))
        .await?;
        Ok(Self { conn, schema: schema.clone() })
    }

    /// Waits for the first, and ends when it is free. Returns when it waits.
    pub(crate) async fn wait(self, watch: &PgStore) -> Result<tokio::task::JoinHandle<()>, BoxError> {
        let Self { mut conn, schema } = self;
        let text = format!("SELECT FROM {schema}.pair WHERE number = 1 FOR UPDATE; ROLLBACK");
        let task = tokio::spawn(async move { conn.batch_execute(&text).await.unwrap() });
        #[derive(diesel::QueryableByName)]
        struct Waiting {
            #[diesel(sql_type = diesel::sql_types::BigInt)]
            count: i64,
        }
        let text = format!(
            "SELECT count(*) FROM pg_catalog.pg_stat_clear_snapshot(), pg_catalog.pg_stat_activity
             WHERE wait_event_type = 'Lock' AND query LIKE 'SELECT FROM {schema}.pair%'"
        );
        let mut conn = watch.pool().get().await?;
        while diesel::sql_query(&text).get_result::<Waiting>(&mut conn).await?.count == 0 {
            tokio::task::yield_now().await;
        }
        Ok(task)
    }
}

/// Ends the transaction of `$session` in this way. `$say` sends a text by its driver.
macro_rules! end {
    ($how:expr, $store:expr, $schema:expr, |$text:ident| $say:expr) => {{
        let Some((texts, fails)) = $crate::support::ending($how, &$schema) else { return Ok(false) };
        let mut rival = None;
        if $how == leasehold_conformance::Ending::Deadlock {
            rival = Some($crate::support::Rival::new(&$store, &$schema).await?);
        }
        let mut task = None;
        for (place, $text) in texts.iter().enumerate() {
            let is_last = place + 1 == texts.len();
            if is_last && let Some(rival) = rival.take() {
                task = Some(rival.wait(&$store).await?);
            }
            let said = $say.await;
            assert_eq!(said.is_err(), fails && is_last, "{}: {said:?}", $text);
        }
        if let Some(task) = task {
            task.await?;
        }
        Ok(true)
    }};
}
#[allow(unused_imports, reason = "each test uses a part of it")]
pub(crate) use end;

/// A transaction of diesel-async's. Dropped before its end, its connection is given up, so that the server rolls back.
struct Session {
    store: PgStore,
    schema: Schema,
    conn: Option<Object<AsyncPgConnection>>,
}

impl Session {
    fn new(database: &Database, conn: Object<AsyncPgConnection>) -> Self {
        Self { store: database.home.clone(), schema: database.schema.clone(), conn: Some(conn) }
    }

    fn conn(&mut self) -> &mut Object<AsyncPgConnection> {
        self.conn.as_mut().unwrap()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.conn.take().map(Object::take));
    }
}

#[async_trait]
impl Transaction for Session {
    async fn enqueue_in(&mut self, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        let store = self.store.clone();
        store.enqueue_in(self.conn(), jobs).await
    }

    async fn settle_in(&mut self, receipt: &Receipt, verdict: Verdict) -> Result<Settled> {
        let store = self.store.clone();
        store.settle_in(self.conn(), receipt, verdict).await
    }

    async fn lock_in(&mut self, receipt: Receipt) -> Result<()> {
        let store = self.store.clone();
        store.lock_in(self.conn(), receipt).await
    }

    async fn once_in(&mut self, key: &IdempotencyKey) -> Result<bool> {
        let store = self.store.clone();
        store.once_in(self.conn(), key).await
    }

    async fn write(&mut self, entry: &str) -> Result<(), BoxError> {
        let insert = diesel::sql_query(format!("INSERT INTO {}.ledger VALUES ($1)", self.schema));
        insert.bind::<Text, _>(entry).execute(self.conn()).await?;
        Ok(())
    }

    async fn read(&mut self) -> Result<Vec<String>, BoxError> {
        let schema = self.schema.clone();
        entries(self.conn(), &schema).await
    }

    async fn end(&mut self, how: Ending) -> Result<bool, BoxError> {
        let (store, schema) = (self.store.clone(), self.schema.clone());
        end!(how, store, schema, |text| self.conn().batch_execute(text))
    }

    async fn commit(mut self: Box<Self>) -> Result<(), BoxError> {
        Ok(AnsiTransactionManager::commit_transaction(&mut **self.conn()).await?)
    }

    async fn rollback(mut self: Box<Self>) -> Result<(), BoxError> {
        Ok(AnsiTransactionManager::rollback_transaction(&mut **self.conn()).await?)
    }
}
