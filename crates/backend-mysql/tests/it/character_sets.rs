//! Sessions of users whose character set is not utf8mb4: the server would store other text than was given.

use diesel_async::{AnsiTransactionManager, AsyncMysqlConnection, SimpleAsyncConnection, TransactionManager};
use leasehold_core::{
    Dequeue, IdempotencyKey, Job, NewJob, Outcome, Receipt, Store, StoreError, TxStore, Verdict,
};
use leasehold_mysql::MysqlStore;

use crate::support::{BOTH, Fresh, plain};

const TEXT: &str = "für € 😀";

/// In German the error that tells of it is not ASCII.
const UNFIT: [&str; 6] = [
    "SET NAMES latin1",
    "SET NAMES utf8mb3",
    "SET NAMES gbk",
    "SET character_set_results = latin1",
    "SET NAMES latin1, SESSION autocommit = 0",
    "SET NAMES latin1, SESSION lc_messages = 'de_DE'",
];

async fn leased(store: &MysqlStore) -> Job {
    store.enqueue(&[NewJob::builder("q", "k").build().unwrap()]).await.unwrap();
    store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap().remove(0)
}

fn job() -> NewJob {
    NewJob::builder("text", "k").payload(&TEXT).unique_key(TEXT).build().unwrap()
}

/// Every call, with text in it.
async fn call(
    store: &MysqlStore,
    conn: &mut AsyncMysqlConnection,
    call: u32,
    receipt: Receipt,
) -> Result<(), StoreError> {
    match call {
        0 => store.lock_in(conn, receipt).await,
        1 => store.enqueue_in(conn, &[job()]).await.map(drop),
        2 => {
            let answer = store.once_in(conn, &IdempotencyKey::new(TEXT).unwrap()).await;
            answer.map(|is_new| assert!(is_new, "the key is taken"))
        }
        _ => store.settle_in(conn, &receipt, Verdict::done_with(TEXT).unwrap()).await.map(drop),
    }
}

const CALLS: u32 = 4;

/// Nothing is done on such a session, and its transaction is fit for use as soon as the character set is right.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_changes_text_is_refused_and_can_be_mended() {
    for variable in BOTH {
        for unfit in UNFIT {
            let fresh = Fresh::on(variable).await;
            let store = fresh.store().await;
            let held = leased(&store).await;
            let mut conn = plain(&fresh.url).await;
            conn.batch_execute(unfit).await.unwrap();
            AnsiTransactionManager::begin_transaction(&mut conn).await.unwrap();
            for number in 0..CALLS {
                let answer = call(&store, &mut conn, number, held.receipt()).await;
                let Err(StoreError::Conflict { reason }) = answer else {
                    panic!("{unfit}: call {number} was answered {answer:?}")
                };
                assert!(reason.contains("SET NAMES utf8mb4"), "{reason}");
            }
            conn.batch_execute("SET NAMES utf8mb4").await.unwrap();
            // They would answer otherwise, if one of them had been done before.
            for number in 0..CALLS {
                call(&store, &mut conn, number, held.receipt()).await.unwrap();
            }
            AnsiTransactionManager::commit_transaction(&mut conn).await.unwrap();
            comes_back(&store, &held).await;
            fresh.drop().await;
        }
    }
}

async fn comes_back(store: &MysqlStore, held: &Job) {
    let outcome = store.get(held.id).await.unwrap().unwrap().finished().unwrap().outcome;
    let Outcome::Completed { result } = outcome else { panic!("it was completed: {outcome:?}") };
    assert_eq!(result.to::<String>().unwrap(), TEXT);
    let jobs = store.dequeue(&Dequeue::new("text", "w").unwrap().limit(2).unwrap()).await.unwrap();
    let [found] = &jobs[..] else { panic!("one job was enqueued: {jobs:?}") };
    assert_eq!(found.payload.to::<String>().unwrap(), TEXT);
    assert!(store.enqueue(&[job()]).await.unwrap()[0].deduplicated, "its key is another");
}

/// Results that are not converted at all are as good as utf8mb4.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_keeps_text_is_served() {
    for variable in BOTH {
        for fit in [
            "SET character_set_results = NULL",
            "SET character_set_results = binary",
            "SET NAMES utf8mb4 COLLATE utf8mb4_bin",
            "SET SESSION sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES', SESSION sql_select_limit = 1",
        ] {
            let fresh = Fresh::on(variable).await;
            let store = fresh.store().await;
            let held = leased(&store).await;
            let mut conn = plain(&fresh.url).await;
            conn.batch_execute(fit).await.unwrap();
            AnsiTransactionManager::begin_transaction(&mut conn).await.unwrap();
            for number in 0..CALLS {
                call(&store, &mut conn, number, held.receipt()).await.unwrap();
            }
            AnsiTransactionManager::commit_transaction(&mut conn).await.unwrap();
            comes_back(&store, &held).await;
            fresh.drop().await;
        }
    }
}
