//! Transactions that the server has ended, while diesel takes them for open.

use diesel::sql_types::BigInt;
use diesel_async::{
    AnsiTransactionManager, AsyncConnection, AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection,
    TransactionManager,
};
use leasehold_core::{
    Dequeue, IdempotencyKey, Job, Json, NewJob, ReceiptStatus, Store, StoreError, TxStore, Verdict,
};
use leasehold_mysql::{MysqlStore, TxError};

use crate::support::{BOTH, Fresh, plain};

const TABLES: &str = "CREATE TABLE orders (id INT PRIMARY KEY) ENGINE = InnoDB;
    CREATE TABLE scratch (id INT PRIMARY KEY) ENGINE = InnoDB;
    CREATE TABLE pair (number INT PRIMARY KEY, touched INT NOT NULL) ENGINE = InnoDB;
    INSERT INTO pair VALUES (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (8, 0)";

/// A store with a leased job, and tables of the user's.
struct Scene {
    fresh: Fresh,
    store: MysqlStore,
    job: Job,
}

impl Scene {
    async fn on(variable: &str) -> Self {
        let fresh = Fresh::on(variable).await;
        let store = fresh.store().await;
        plain(&fresh.url).await.batch_execute(TABLES).await.unwrap();
        store.enqueue(&[NewJob::builder("q", "k").build().unwrap()]).await.unwrap();
        let job = store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap().remove(0);
        Self { fresh, store, job }
    }

    /// The rows of a table, by what is committed.
    async fn rows(&self, table: &str) -> i64 {
        rows(&mut plain(&self.fresh.url).await, table).await
    }

    /// Sees that nothing has come of anything, and that the job can be settled still.
    async fn is_as_before(&self) {
        for (table, expected) in [("orders", 0), ("job_queue", 1), ("job_history", 0), ("job_idempotency", 0)]
        {
            assert_eq!(self.rows(table).await, expected, "{table}");
        }
        let status = self.store.receipts(&[self.job.receipt()]).await.unwrap();
        assert!(matches!(status[..], [ReceiptStatus::Held { .. }]), "{status:?}");
    }

    /// Sees that every call is refused, and the commit as well.
    async fn refuses_everything(&self, mut ended: impl AsyncFnMut() -> AsyncMysqlConnection) {
        for call in 0..CALLS {
            let mut conn = ended().await;
            let answer = self.call(call, &mut conn).await;
            assert!(matches!(answer, Err(StoreError::NoTransaction { .. })), "call {call}: {answer:?}");
            let commit = AnsiTransactionManager::commit_transaction(&mut conn).await;
            assert!(commit.is_err(), "call {call} was refused, but its transaction is committed");
            drop(conn);
            self.is_as_before().await;
        }
    }

    async fn call(&self, call: u32, conn: &mut AsyncMysqlConnection) -> Result<(), StoreError> {
        let (store, receipt) = (&self.store, self.job.receipt());
        let keyed = NewJob::builder("q", "k").unique_key("a").build().unwrap();
        match call {
            0 => store.settle_in(conn, &receipt, Verdict::done()).await.map(drop),
            1 => store.settle_in(conn, &receipt, Verdict::retry("failed")).await.map(drop),
            2 => store.enqueue_in(conn, &[NewJob::builder("q", "k").build().unwrap()]).await.map(drop),
            3 => store.enqueue_in(conn, &[keyed]).await.map(drop),
            4 => store.once_in(conn, &IdempotencyKey::new("once").unwrap()).await.map(drop),
            _ => store.lock_in(conn, receipt).await,
        }
    }
}

/// How many calls [`Scene::call`] knows.
const CALLS: u32 = 6;

async fn rows(conn: &mut AsyncMysqlConnection, table: &str) -> i64 {
    #[derive(diesel::QueryableByName)]
    struct Rows {
        #[diesel(sql_type = BigInt)]
        count: i64,
    }
    let count = diesel::sql_query(format!("SELECT COUNT(*) AS count FROM {table}"));
    count.get_result::<Rows>(conn).await.unwrap().count
}

/// Two transactions each want a row that the other has locked. The server undoes this one, which has changed less.
async fn lose_a_deadlock(conn: &mut AsyncMysqlConnection, url: &str) {
    let mut rival = plain(url).await;
    let touch = "START TRANSACTION; UPDATE pair SET touched = touched + 1 WHERE number > 1";
    rival.batch_execute(touch).await.unwrap();
    conn.batch_execute("SELECT * FROM pair WHERE number = 1 FOR UPDATE").await.unwrap();
    let rival = tokio::spawn(async move {
        rival.batch_execute("SELECT * FROM pair WHERE number = 1 FOR UPDATE").await.unwrap();
        rival.batch_execute("ROLLBACK").await.unwrap();
    });
    let lost = conn.batch_execute("SELECT * FROM pair WHERE number = 2 FOR UPDATE").await;
    assert!(lost.is_err(), "there was no deadlock");
    rival.await.unwrap();
}

/// A handler writes, loses a deadlock, goes on as if nothing had happened, and settles.
async fn handle(scene: &Scene, conn: &mut AsyncMysqlConnection) -> Result<(), TxError> {
    conn.transaction(async |conn| {
        diesel::sql_query("INSERT INTO orders (id) VALUES (7)").execute(conn).await?;
        lose_a_deadlock(conn, &scene.fresh.url).await;
        let _settled = scene.store.ack_in(conn, &scene.job.receipt(), Json::null()).await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_goes_on_after_a_deadlock_settles_nothing() {
    for variable in BOTH {
        let scene = Scene::on(variable).await;
        let mut conn = scene.store.pool().get().await.unwrap();
        let error = handle(&scene, &mut conn).await.unwrap_err();
        assert!(matches!(error, TxError::Store(StoreError::NoTransaction { .. })), "{error:?}");
        scene.is_as_before().await;
        drop(conn);
        // The next connection of the pool is fit for the next attempt.
        let mut conn = scene.store.pool().get().await.unwrap();
        let again: Result<(), TxError> = conn
            .transaction(async |conn| {
                diesel::sql_query("INSERT INTO orders (id) VALUES (7)").execute(conn).await?;
                let _settled = scene.store.ack_in(conn, &scene.job.receipt(), Json::null()).await?;
                Ok(())
            })
            .await;
        again.unwrap();
        assert_eq!((scene.rows("orders").await, scene.rows("job_history").await), (1, 1));
        scene.fresh.drop().await;
    }
}

/// A connection in a transaction that has written.
async fn begin(fresh: &Fresh, settings: &str) -> AsyncMysqlConnection {
    let mut conn = plain(&fresh.url).await;
    conn.batch_execute(settings).await.unwrap();
    AnsiTransactionManager::begin_transaction(&mut conn).await.unwrap();
    conn
}

/// `autocommit`, as it can be.
const SETTINGS: [&str; 2] = ["SET SESSION autocommit = 1", "SET SESSION autocommit = 0"];

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_after_a_deadlock_is_refused_and_cannot_be_committed() {
    for variable in BOTH {
        let scene = Scene::on(variable).await;
        for settings in SETTINGS {
            let ended = async || {
                let mut conn = begin(&scene.fresh, settings).await;
                conn.batch_execute("INSERT INTO orders (id) VALUES (7)").await.unwrap();
                lose_a_deadlock(&mut conn, &scene.fresh.url).await;
                conn
            };
            scene.refuses_everything(ended).await;
        }
        scene.fresh.drop().await;
    }
}

/// Each of these commits. TRUNCATE does so by itself.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_after_a_commit_is_refused() {
    for variable in BOTH {
        let scene = Scene::on(variable).await;
        for settings in SETTINGS {
            for ending in ["TRUNCATE TABLE scratch", "COMMIT", "ROLLBACK"] {
                let ended = async || {
                    let mut conn = begin(&scene.fresh, settings).await;
                    conn.batch_execute(ending).await.unwrap();
                    conn
                };
                scene.refuses_everything(ended).await;
            }
        }
        scene.fresh.drop().await;
    }
}

/// Every call works in a session with `autocommit = 0`, and is done or undone with the transaction.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_without_autocommit_are_served() {
    for variable in BOTH {
        let scene = Scene::on(variable).await;
        for call in 0..CALLS {
            let mut conn = begin(&scene.fresh, "SET SESSION autocommit = 0").await;
            scene.call(call, &mut conn).await.unwrap();
            AnsiTransactionManager::rollback_transaction(&mut conn).await.unwrap();
            scene.is_as_before().await;
        }
        let mut conn = begin(&scene.fresh, "SET SESSION autocommit = 0").await;
        for call in [5, 4, 3, 2, 0] {
            scene.call(call, &mut conn).await.unwrap();
        }
        AnsiTransactionManager::commit_transaction(&mut conn).await.unwrap();
        for (table, expected) in [("job_queue", 2), ("job_history", 1), ("job_idempotency", 1)] {
            assert_eq!(scene.rows(table).await, expected, "{table}");
        }
        scene.fresh.drop().await;
    }
}
