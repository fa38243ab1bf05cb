//! Servers that have no room for more: prepared statements, and joins.

use std::error::Error;

use diesel::sql_types::Text;
use diesel_async::{
    AnsiTransactionManager, AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection, TransactionManager,
};
use leasehold_core::{Dequeue, IdempotencyKey, Job, LeaseFor, NewJob, Store, StoreError, TxStore, Verdict};
use leasehold_mysql::MysqlStore;
use leasehold_servers::{Mysql, MysqlFlavor};

use crate::support::{BOTH, Fresh, MARIADB, plain};

const FLAVORS: [MysqlFlavor; 2] = [MysqlFlavor::Mysql, MysqlFlavor::Mariadb];
/// docs/mysql.md promises no more for each connection.
const MOST: i64 = 100;

async fn start(flavor: MysqlFlavor) -> Mysql {
    tokio::task::spawn_blocking(move || Mysql::start(flavor, &[]).unwrap()).await.unwrap()
}

/// How many statements the server keeps prepared.
async fn prepared(conn: &mut AsyncMysqlConnection) -> i64 {
    #[derive(diesel::QueryableByName)]
    struct Status {
        #[diesel(sql_type = Text)]
        #[diesel(column_name = "Value")]
        value: String,
    }
    let status = "SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'";
    diesel::sql_query(status).get_result::<Status>(conn).await.unwrap().value.parse().unwrap()
}

/// All that a worker does with so many jobs.
async fn work(store: &MysqlStore, count: usize) -> Result<(), StoreError> {
    store.enqueue(&vec![NewJob::builder("q", "k").build().unwrap(); count]).await?;
    let request = Dequeue::new("q", "w").unwrap().limit(count as u32).unwrap();
    let jobs = store.dequeue(&request).await?;
    let receipts: Vec<_> = jobs.iter().map(Job::receipt).collect();
    store.heartbeat(&receipts, LeaseFor::new(std::time::Duration::from_secs(60)).unwrap()).await?;
    let verdict = |place: usize| match place % 3 {
        0 if count.is_multiple_of(2) => Verdict::dead("no"),
        1 if count.is_multiple_of(2) => Verdict::discard("no"),
        _ => Verdict::done(),
    };
    let items: Vec<_> =
        receipts.iter().enumerate().map(|(place, receipt)| (*receipt, verdict(place))).collect();
    store.settle(&items).await?;
    Ok(())
}

/// Batches of every order of magnitude, on one connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_keeps_few_statements() {
    for flavor in FLAVORS {
        let server = start(flavor).await;
        let fresh = Fresh::at(&server.url()).await;
        let mut beside = plain(&fresh.url).await;
        fresh.store().await;
        let store = MysqlStore::builder().pool_size(1).connect(&fresh.url).await.unwrap();
        let before = prepared(&mut beside).await;
        let mut count = 1;
        while count <= 1024 {
            work(&store, count).await.unwrap();
            count += 1 + count / 8;
        }
        let kept = prepared(&mut beside).await - before;
        assert!(kept <= MOST, "{flavor:?}: {kept} statements");

        // Another program has used up what the server keeps: that is said, and goes by.
        beside
            .batch_execute(&format!("SET GLOBAL max_prepared_stmt_count = {}", before + kept))
            .await
            .unwrap();
        let other = MysqlStore::builder().pool_size(2).connect(&fresh.url).await.unwrap_err();
        assert!(other.is_retryable(), "{other}");
        beside.batch_execute(&format!("SET GLOBAL max_prepared_stmt_count = {}", before + 3)).await.unwrap();
        drop(store);
        let store = loop {
            // The connection that was dropped ends in the background.
            if let Ok(store) = MysqlStore::builder().pool_size(1).connect(&fresh.url).await {
                break store;
            }
        };
        let refused = work(&store, 5).await.unwrap_err();
        assert!(refused.is_retryable() && !refused.is_unknown(), "{refused:?}");
        beside.batch_execute("SET GLOBAL max_prepared_stmt_count = 16382").await.unwrap();
        work(&store, 5).await.unwrap();
    }
}

/// The store's own connections, on a server that lets nobody join many rows.
#[tokio::test(flavor = "multi_thread")]
async fn the_stores_own_statements_may_be_large() {
    for flavor in FLAVORS {
        let server = start(flavor).await;
        server.query("SET GLOBAL max_join_size = 1").unwrap();
        let fresh = Fresh::at(&server.url()).await;
        let store = fresh.store().await;
        for count in [1, 2, 6] {
            work(&store, count).await.unwrap();
        }
        store.stats(&leasehold_core::Queues::all()).await.unwrap();
    }
}

/// A transaction of the user's: it is right, or the error says what to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_a_small_join_size_is_right_or_told_what_to_do() {
    for variable in BOTH {
        let fresh = Fresh::on(variable).await;
        let store = fresh.store().await;
        let mut conn = plain(&fresh.url).await;
        conn.batch_execute("SET SESSION max_join_size = 1").await.unwrap();
        for verdict in [Verdict::done(), Verdict::dead("no"), Verdict::retry("again")] {
            store.enqueue(&[NewJob::builder("q", "k").build().unwrap()]).await.unwrap();
            let job = store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap().remove(0);
            AnsiTransactionManager::begin_transaction(&mut conn).await.unwrap();
            match store.settle_in(&mut conn, &job.receipt(), verdict).await {
                Ok(settled) => assert!(settled.fate() != leasehold_core::Fate::Discarded),
                Err(error) => {
                    let advice = error.source().map(ToString::to_string).unwrap_or_default();
                    assert!(advice.contains("sql_big_selects = 1"), "{error:?}");
                }
            }
            AnsiTransactionManager::rollback_transaction(&mut conn).await.unwrap();
        }
        fresh.drop().await;
    }
}

/// MariaDB can take an empty text for NULL.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_text_may_be_null_in_a_session_of_the_users() {
    let fresh = Fresh::on(MARIADB).await;
    let store = fresh.store().await;
    let mut conn = plain(&fresh.url).await;
    conn.batch_execute("SET SESSION sql_mode = CONCAT(@@sql_mode, ',EMPTY_STRING_IS_NULL')").await.unwrap();
    for verdict in [Verdict::done(), Verdict::dead(""), Verdict::discard(""), Verdict::retry("")] {
        AnsiTransactionManager::begin_transaction(&mut conn).await.unwrap();
        assert!(store.once_in(&mut conn, &IdempotencyKey::new("k").unwrap()).await.unwrap());
        let new = [
            NewJob::builder("q", "k").build().unwrap(),
            NewJob::builder("q", "k").unique_key("u").payload(&"").header("h", "").build().unwrap(),
        ];
        let ids = store.enqueue_in(&mut conn, &new).await.unwrap();
        AnsiTransactionManager::commit_transaction(&mut conn).await.unwrap();
        let jobs = store.dequeue(&Dequeue::new("q", "w").unwrap().limit(2).unwrap()).await.unwrap();
        assert_eq!(jobs.len(), 2);
        assert_eq!(jobs[1].id, ids[1].id);
        assert_eq!(jobs[1].payload, *new[1].payload());
        assert_eq!(jobs[1].headers, *new[1].headers());
        AnsiTransactionManager::begin_transaction(&mut conn).await.unwrap();
        store.lock_in(&mut conn, jobs[0].receipt()).await.unwrap();
        for job in &jobs {
            let _fate = store.settle_in(&mut conn, &job.receipt(), verdict.clone()).await.unwrap().fate();
        }
        AnsiTransactionManager::rollback_transaction(&mut conn).await.unwrap();
        for job in &jobs {
            store.discard(job.id, leasehold_core::Json::null()).await.unwrap();
        }
        conn.batch_execute("DELETE FROM job_idempotency").await.unwrap();
    }
    fresh.drop().await;
}
