//! Sessions of users whose messages are German: errors are told apart by their numbers.

use std::error::Error;

use diesel_async::{AnsiTransactionManager, AsyncMysqlConnection, SimpleAsyncConnection, TransactionManager};
use leasehold_core::{Dequeue, Job, Json, NewJob, Store, StoreError, TxStore};
use leasehold_mysql::MysqlStore;
use leasehold_servers::{Mysql, MysqlFlavor};

use crate::support::{Fresh, plain, unusual, users_pool};

const BOTH: [MysqlFlavor; 2] = [MysqlFlavor::Mysql, MysqlFlavor::Mariadb];

/// What an error and its sources say.
fn words(error: &StoreError) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        words = format!("{words}: {cause}");
        source = cause.source();
    }
    words
}

fn job() -> NewJob {
    NewJob::builder("q", "kind").build().unwrap()
}

async fn leased(store: &MysqlStore, count: u32) -> Vec<Job> {
    store.enqueue(&vec![job(); count as usize]).await.unwrap();
    store.dequeue(&Dequeue::new("q", "w").unwrap().limit(count).unwrap()).await.unwrap()
}

/// A database on a server that does answer in German.
async fn german(server: &Mysql) -> Fresh {
    let fresh = Fresh::at(&server.url()).await;
    let error = plain(&fresh.url).await.batch_execute("SELECT * FROM nothing").await.unwrap_err();
    assert!(error.to_string().contains("existiert nicht"), "{error}");
    fresh
}

async fn begin(conn: &mut AsyncMysqlConnection) {
    AnsiTransactionManager::begin_transaction(conn).await.unwrap();
}

/// 1213. The transaction that was given up cannot be committed.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_is_unavailable_and_breaks_the_transaction() {
    for flavor in BOTH {
        let server = unusual(flavor).await;
        let fresh = german(&server).await;
        let store = fresh.store().await;
        let jobs = leased(&store, 2).await;
        let (mut one, mut two) = (plain(&fresh.url).await, plain(&fresh.url).await);
        let [first, second] = [jobs[0].receipt(), jobs[1].receipt()];
        for (conn, receipt) in [(&mut one, first), (&mut two, second)] {
            begin(conn).await;
            store.lock_in(conn, receipt).await.unwrap();
        }
        let both = tokio::join!(
            store.ack_in(&mut one, &second, Json::null()),
            store.ack_in(&mut two, &first, Json::null()),
        );
        let (given_up, loser) = match both {
            (Err(error), Ok(_)) => (error, &mut one),
            (Ok(_), Err(error)) => (error, &mut two),
            both => panic!("not one of the two was given up: {both:?}"),
        };
        assert!(matches!(given_up, StoreError::Unavailable { .. }), "{}", words(&given_up));
        AnsiTransactionManager::commit_transaction(loser).await.unwrap_err();
        drop((one, two)); // Tables that an open transaction has read cannot be dropped.
        fresh.drop().await;
    }
}

/// 1205 and 1792.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_does_not_come_and_a_read_only_transaction_are_unavailable() {
    for flavor in BOTH {
        let server = unusual(flavor).await;
        let fresh = german(&server).await;
        let store = fresh.store().await;
        let receipt = leased(&store, 1).await[0].receipt();
        let (mut holder, mut waits) = (plain(&fresh.url).await, plain(&fresh.url).await);
        begin(&mut holder).await;
        store.lock_in(&mut holder, receipt).await.unwrap();
        waits.batch_execute("SET SESSION innodb_lock_wait_timeout = 1").await.unwrap();
        begin(&mut waits).await;
        let late = store.ack_in(&mut waits, &receipt, Json::null()).await.unwrap_err();
        assert!(matches!(late, StoreError::Unavailable { .. }), "{}", words(&late));
        AnsiTransactionManager::commit_transaction(&mut waits).await.unwrap_err();

        let mut reads = plain(&fresh.url).await;
        reads.batch_execute("SET SESSION TRANSACTION READ ONLY").await.unwrap();
        begin(&mut reads).await;
        let refused = store.enqueue_in(&mut reads, &[job()]).await.unwrap_err();
        assert!(matches!(refused, StoreError::Unavailable { .. }), "{}", words(&refused));
        drop((holder, waits, reads));
        fresh.drop().await;
    }
}

/// 1062: a key that an open transaction has taken meanwhile, so that only the INSERT finds it.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_taken_meanwhile_is_found() {
    for flavor in BOTH {
        let server = unusual(flavor).await;
        let fresh = german(&server).await;
        let store = fresh.store().await;
        let keyed = NewJob::builder("q", "k").unique_key("a").build().unwrap();
        let mut conn = plain(&fresh.url).await;
        begin(&mut conn).await;
        conn.batch_execute("SELECT COUNT(*) FROM job_queue").await.unwrap(); // The snapshot is of before the key.
        let first = store.enqueue(std::slice::from_ref(&keyed)).await.unwrap();
        let second = store.enqueue_in(&mut conn, &[keyed]).await.unwrap();
        assert!(second[0].deduplicated && second[0].id == first[0].id, "{second:?}");
        drop(conn);
        fresh.drop().await;
    }
}

/// 1146, 1142 and 1406: none of them goes away by itself, and each says what to do.
#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_go_away_by_itself_says_what_to_do() {
    for flavor in BOTH {
        let server = unusual(flavor).await;
        let fresh = german(&server).await;
        let store = MysqlStore::from_pool(users_pool(&fresh.url, &[]));
        let refused = |error: StoreError, advice: &str| {
            assert!(matches!(error, StoreError::Backend { .. }), "{}", words(&error));
            assert!(words(&error).contains(advice), "{}", words(&error));
        };
        refused(store.enqueue(&[job()]).await.unwrap_err(), "run MysqlStore::migrate");
        store.migrate().await.unwrap();

        let mut admin = plain(&fresh.url).await;
        let user = format!("u_{}", fresh.name);
        for text in [
            format!("CREATE USER {user}@'%' IDENTIFIED BY 'word'"),
            format!("GRANT SELECT ON {}.* TO {user}@'%'", fresh.name),
        ] {
            admin.batch_execute(&text).await.unwrap();
        }
        let url = fresh.url.replacen("leasehold@", &format!("{user}:word@"), 1);
        let reader = MysqlStore::from_pool(users_pool(&url, &[]));
        refused(reader.enqueue(&[job()]).await.unwrap_err(), "grant what docs/mysql.md lists");

        admin.batch_execute("ALTER TABLE job_queue MODIFY kind VARBINARY(1) NOT NULL").await.unwrap();
        refused(store.enqueue(&[job()]).await.unwrap_err(), "no room for the value");
        admin.batch_execute(&format!("DROP USER {user}@'%'")).await.unwrap();
        fresh.drop().await;
    }
}
