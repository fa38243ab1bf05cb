//! A harness for the conformance suite on a real server: a database for each check.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use diesel::ConnectionError;
use diesel::sql_types::Text;
use diesel_async::pooled_connection::deadpool::{Object, Pool};
use diesel_async::pooled_connection::{AsyncDieselConnectionManager, ManagerConfig, RecyclingMethod};
use diesel_async::{
    AnsiTransactionManager, AsyncConnection, AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection,
    TransactionManager,
};
use leasehold_conformance::{BoxError, Ending, Harness, Isolation, Transaction};
use leasehold_core::{
    Enqueued, IdempotencyKey, JobId, NewJob, Receipt, Result, Settled, Store, TxStore, Verdict,
};
use leasehold_mysql::MysqlStore;
use leasehold_servers::{Mysql, MysqlFlavor};
use tokio::sync::Mutex;

pub(crate) const MYSQL: &str = "LEASEHOLD_TEST_MYSQL_URL";
pub(crate) const MARIADB: &str = "LEASEHOLD_TEST_MARIADB_URL";

/// Both servers, by the variables that have their URLs.
pub(crate) const BOTH: [&str; 2] = [MYSQL, MARIADB];

/// The URL of a server that `cargo xtask test` has started, or that whoever runs the tests has named.
pub(crate) fn url(variable: &str) -> String {
    match std::env::var(variable) {
        Ok(url) => url,
        Err(_) => panic!(
            "{variable} is not set: run `cargo xtask test -p leasehold-mysql`, or `cargo xtask servers` and set what it prints"
        ),
    }
}

/// The same server, but another database.
pub(crate) fn with_database(url: &str, name: &str) -> String {
    let (place, _) = url.rsplit_once('/').unwrap();
    format!("{place}/{name}")
}

/// A plain connection, as a user would open it.
pub(crate) async fn plain(url: &str) -> AsyncMysqlConnection {
    AsyncMysqlConnection::establish(&url.replacen("mariadb:", "mysql:", 1)).await.unwrap()
}

/// A database that nobody else has, in this process or another, dropped with this.
pub(crate) struct Fresh {
    server: String,
    pub(crate) name: String,
    pub(crate) url: String,
}

impl Fresh {
    /// On the server that a variable names.
    pub(crate) async fn on(variable: &str) -> Self {
        Self::at(&url(variable)).await
    }

    /// On the server at a URL.
    pub(crate) async fn at(server: &str) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{}_{count}", std::process::id());
        let mut conn = plain(server).await;
        conn.batch_execute(&format!("DROP DATABASE IF EXISTS {name}")).await.unwrap();
        conn.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        Self { server: server.to_owned(), url: with_database(server, &name), name }
    }

    /// A store on it, with its tables.
    pub(crate) async fn store(&self) -> MysqlStore {
        let store = MysqlStore::connect(&self.url).await.unwrap();
        store.migrate().await.unwrap();
        store
    }

    /// Gone, unless the server is.
    pub(crate) async fn drop(&self) {
        let mut conn = plain(&self.server).await;
        conn.batch_execute(&format!("DROP DATABASE {}", self.name)).await.unwrap();
    }
}

/// One server, and who connects to it.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) url: String,
    /// What the user of the store may do, if that is less than everything.
    pub(crate) grants: Option<&'static str>,
    /// Whether transactions above READ COMMITTED have MariaDB's `innodb_snapshot_isolation`: the default from 11.6 on.
    pub(crate) snapshots: bool,
}

/// One database, and a store on it for transactions.
pub(crate) struct Database {
    fresh: Fresh,
    url: String,
    pub(crate) home: MysqlStore,
}

impl Server {
    pub(crate) fn new(name: &'static str, variable: &str) -> Self {
        Self { name, url: url(variable), grants: None, snapshots: false }
    }

    /// With `innodb_snapshot_isolation`.
    pub(crate) fn with_snapshots(self) -> Self {
        Self { snapshots: true, ..self }
    }

    /// As a user who may do no more than this.
    pub(crate) fn restricted(name: &'static str, variable: &str, grants: &'static str) -> Self {
        Self { grants: Some(grants), ..Self::new(name, variable) }
    }

    async fn open(url: &str) -> Result<MysqlStore> {
        MysqlStore::builder().pool_size(8).connect(url).await
    }
}

#[async_trait]
impl Harness for Server {
    type Database = Database;

    fn name(&self) -> &str {
        self.name
    }

    async fn create(&self) -> Result<Database, BoxError> {
        let fresh = Fresh::at(&self.url).await;
        let mut url = fresh.url.clone();
        fresh.store().await;
        let mut conn = plain(&fresh.url).await;
        conn.batch_execute(
            "CREATE TABLE ledger (entry TEXT NOT NULL) ENGINE = InnoDB;
             CREATE TABLE pair (number INT PRIMARY KEY, touched INT NOT NULL) ENGINE = InnoDB;
             INSERT INTO pair VALUES (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0)",
        )
        .await?;
        if let Some(grants) = self.grants {
            let user = format!("u_{}", fresh.name);
            conn.batch_execute(&format!("CREATE USER {user}@'%' IDENTIFIED BY 'word'")).await?;
            for grant in grants.split(';').map(str::trim).filter(|grant| !grant.is_empty()) {
                let grant =
                    grant.replace("{database}", &fresh.name).replace("{user}", &format!("{user}@'%'"));
                conn.batch_execute(&grant).await?;
            }
            let name = &fresh.name;
            for grant in ["SELECT, INSERT ON {name}.ledger", "SELECT, UPDATE, CREATE ON {name}.pair"] {
                let grant = grant.replace("{name}", name);
                conn.batch_execute(&format!("GRANT {grant} TO {user}@'%'")).await?;
            }
            url = url.replacen("leasehold@", &format!("{user}:word@"), 1);
        }
        let home = Self::open(&url).await?;
        Ok(Database { fresh, url, home })
    }

    async fn destroy(&self, database: &Database) -> Result<(), BoxError> {
        database.home.pool().close();
        database.fresh.drop().await;
        Ok(())
    }

    async fn connect(&self, database: &Database) -> Result<Arc<dyn Store>, BoxError> {
        Ok(Arc::new(Self::open(&database.url).await?))
    }

    async fn age(&self, database: &Database, by: Duration) -> Result<(), BoxError> {
        shift(database, &format!("- INTERVAL {} MICROSECOND", by.as_micros())).await
    }

    async fn set_back(&self, database: &Database, by: Duration) -> Result<bool, BoxError> {
        shift(database, &format!("+ INTERVAL {} MICROSECOND", by.as_micros())).await?;
        Ok(true)
    }

    async fn finish_twin(&self, database: &Database, id: JobId) -> Result<bool, BoxError> {
        let mut conn = plain(&database.fresh.url).await;
        conn.batch_execute(&format!(
            "INSERT INTO job_history (id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch,
                 status_final, last_error, redrives, created_at, started_at, finished_at)
             SELECT id, queue_name, kind, priority, unique_key, payload, headers, attempts, max_attempts, lease_epoch,
                 'dead_letter', 'null', redrives, created_at, first_leased_at, UTC_TIMESTAMP(6) FROM job_queue WHERE id = {id}"
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
        if self.snapshots {
            conn.batch_execute("SET SESSION innodb_snapshot_isolation = ON").await?;
        }
        // Of the next transaction alone.
        conn.batch_execute(&format!("SET TRANSACTION ISOLATION LEVEL {}", level.sql())).await?;
        AnsiTransactionManager::begin_transaction(&mut *conn).await?;
        Ok(Some(Box::new(Session::new(database, conn))))
    }

    async fn no_transaction(&self, database: &Database) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        let conn = database.home.pool().get().await?;
        Ok(Some(Box::new(Session::new(database, conn))))
    }

    async fn ledger(&self, database: &Database) -> Result<Vec<String>, BoxError> {
        let mut conn = database.home.pool().get().await?;
        entries(&mut conn).await
    }
}

async fn entries(conn: &mut AsyncMysqlConnection) -> Result<Vec<String>, BoxError> {
    #[derive(diesel::QueryableByName)]
    struct Entry {
        #[diesel(sql_type = Text)]
        entry: String,
    }
    let entries: Vec<Entry> = diesel::sql_query("SELECT entry FROM ledger").load(conn).await?;
    Ok(entries.into_iter().map(|entry| entry.entry).collect())
}

/// Moves every stored time.
async fn shift(database: &Database, by: &str) -> Result<(), BoxError> {
    let mut conn = plain(&database.fresh.url).await;
    conn.batch_execute("START TRANSACTION").await?;
    for text in [
        "UPDATE job_queue SET available_at = available_at {by}, lease_until = lease_until {by},
             first_leased_at = first_leased_at {by}, created_at = created_at {by}, updated_at = updated_at {by}",
        "UPDATE job_history SET created_at = created_at {by}, started_at = started_at {by},
             finished_at = finished_at {by}",
        "UPDATE job_queue_limit SET full_at = full_at {by}",
        "UPDATE job_idempotency SET created_at = created_at {by}, kept_until = kept_until {by}",
        "COMMIT",
    ] {
        conn.batch_execute(&text.replace("{by}", by)).await?;
    }
    Ok(())
}

/// A transaction of diesel-async's. Dropped before its end, its connection is given up, so that the server rolls back.
struct Session {
    store: MysqlStore,
    /// The server as its administrator sees it.
    url: String,
    conn: Option<Object<AsyncMysqlConnection>>,
}

impl Session {
    fn new(database: &Database, conn: Object<AsyncMysqlConnection>) -> Self {
        Self { store: database.home.clone(), url: database.fresh.url.clone(), conn: Some(conn) }
    }

    fn conn(&mut self) -> &mut Object<AsyncMysqlConnection> {
        self.conn.as_mut().unwrap()
    }

    /// Two transactions want what the other has. The server undoes the one that has changed less.
    async fn lose_a_deadlock(&mut self) -> Result<(), BoxError> {
        let mut rival = plain(&self.url).await;
        rival
            .batch_execute("START TRANSACTION; UPDATE pair SET touched = touched + 1 WHERE number > 1")
            .await?;
        self.conn().batch_execute("SELECT * FROM pair WHERE number = 1 FOR UPDATE").await?;
        let rival = tokio::spawn(async move {
            rival.batch_execute("SELECT * FROM pair WHERE number = 1 FOR UPDATE").await?;
            rival.batch_execute("ROLLBACK").await
        });
        let lost = self.conn().batch_execute("SELECT * FROM pair WHERE number = 2 FOR UPDATE").await;
        assert!(lost.is_err(), "there was no deadlock");
        Ok(rival.await??)
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
        let insert = diesel::sql_query("INSERT INTO ledger VALUES (?)");
        insert.bind::<Text, _>(entry).execute(self.conn()).await?;
        Ok(())
    }

    async fn read(&mut self) -> Result<Vec<String>, BoxError> {
        entries(self.conn()).await
    }

    async fn end(&mut self, how: Ending) -> Result<bool, BoxError> {
        match how {
            Ending::Commit => self.conn().batch_execute("COMMIT").await?,
            Ending::Rollback => self.conn().batch_execute("ROLLBACK").await?,
            Ending::Definition => {
                // It commits whether or not the user may do it.
                drop(self.conn().batch_execute("CREATE TABLE pair (number INT)").await);
            }
            Ending::Deadlock => self.lose_a_deadlock().await?,
            _ => return Ok(false), // A statement that fails undoes no more than itself.
        }
        Ok(true)
    }

    async fn commit(mut self: Box<Self>) -> Result<(), BoxError> {
        Ok(AnsiTransactionManager::commit_transaction(&mut **self.conn()).await?)
    }

    async fn rollback(mut self: Box<Self>) -> Result<(), BoxError> {
        Ok(AnsiTransactionManager::rollback_transaction(&mut **self.conn()).await?)
    }
}

/// A pool as a user makes one, on whose connections `settings` are run first.
pub(crate) fn users_pool(url: &str, settings: &'static [&'static str]) -> Pool<AsyncMysqlConnection> {
    let mut config = ManagerConfig::default();
    config.recycling_method = RecyclingMethod::Fast;
    config.custom_setup = Box::new(move |url| {
        let url = url.to_owned();
        Box::pin(async move {
            let mut conn = AsyncMysqlConnection::establish(&url).await?;
            for text in settings {
                conn.batch_execute(text).await.map_err(ConnectionError::CouldntSetupConfiguration)?;
            }
            Ok(conn)
        })
    });
    let url = url.replacen("mariadb:", "mysql:", 1);
    Pool::builder(AsyncDieselConnectionManager::new_with_config(url, config)).max_size(4).build().unwrap()
}

/// A private server that an administrator has set up for other programs: `UPDATE` and `DELETE` without a key are refused, packets
/// are small, messages are German. The tests that run at the same time share it.
pub(crate) async fn unusual(flavor: MysqlFlavor) -> Arc<Mysql> {
    static SERVERS: [Mutex<Weak<Mysql>>; 2] = [const { Mutex::const_new(Weak::new()) }; 2];
    let mut server = SERVERS[flavor as usize].lock().await;
    if let Some(server) = server.upgrade() {
        return server;
    }
    let extra = [("max-allowed-packet", "4M")];
    let started = tokio::task::spawn_blocking(move || Mysql::start(flavor, &extra).unwrap()).await.unwrap();
    for setting in ["sql_safe_updates = ON", "lc_messages = 'de_DE'"] {
        started.query(&format!("SET GLOBAL {setting}")).unwrap();
    }
    let started = Arc::new(started);
    *server = Arc::downgrade(&started);
    started
}
