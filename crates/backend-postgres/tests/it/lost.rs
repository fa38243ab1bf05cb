//! Answers that are lost on the way: the caller is told that it is not known what was done, and can find out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use diesel::sql_types::BigInt;
use diesel_async::pooled_connection::deadpool::Object;
use diesel_async::{AnsiTransactionManager, SimpleAsyncConnection, TransactionManager};
use leasehold_core::{
    Dequeue, FinalStatus, Job, Json, NewJob, ReceiptStatus, Store, StoreError, TxStore, Verdict,
};
use leasehold_postgres::{PgStore, Schema, WakeupMode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Stands between a store and its server. When it is told to, it lets what the store sends through, and cuts the
/// connection when the server answers.
struct Proxy {
    url: String,
    cuts: Arc<AtomicBool>,
}

impl Proxy {
    async fn before(url: &str) -> Self {
        let server = url.split('@').nth(1).unwrap().split('/').next().unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = listener.local_addr().unwrap().to_string();
        let cuts = Arc::new(AtomicBool::new(false));
        let url = url.replace(&server, &here);
        tokio::spawn(accept(listener, server, Arc::clone(&cuts)));
        Self { url, cuts }
    }

    fn cut_the_next_answer(&self) {
        self.cuts.store(true, Ordering::SeqCst);
    }
}

async fn accept(listener: TcpListener, server: String, cuts: Arc<AtomicBool>) {
    while let Ok((client, _)) = listener.accept().await {
        let server = TcpStream::connect(&server).await.unwrap();
        tokio::spawn(carry(client, server, Arc::clone(&cuts)));
    }
}

async fn carry(mut client: TcpStream, mut server: TcpStream, cuts: Arc<AtomicBool>) {
    let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            read = client.read(&mut asked) => match read {
                Ok(bytes) if bytes > 0 => server.write_all(&asked[..bytes]).await.unwrap(),
                _ => return,
            },
            read = server.read(&mut answered) => match read {
                Ok(bytes) if bytes > 0 && !cuts.swap(false, Ordering::SeqCst) => {
                    if client.write_all(&answered[..bytes]).await.is_err() {
                        return;
                    }
                }
                _ => return,
            },
        }
    }
}

/// A store behind a proxy, another that reaches the server directly, and a job that the first has leased.
struct Scene {
    proxy: Proxy,
    store: PgStore,
    direct: PgStore,
    schema: Schema,
    job: Job,
}

impl Scene {
    async fn new() -> Self {
        let url = crate::support::url("LEASEHOLD_TEST_POSTGRES_URL");
        let proxy = Proxy::before(&url).await;
        let schema = crate::support::fresh_schema();
        let direct = PgStore::builder().schema(schema.clone()).connect(&url).await.unwrap();
        direct.migrate().await.unwrap();
        let ledger = format!("CREATE TABLE {schema}.ledger (job bigint NOT NULL)");
        direct.pool().get().await.unwrap().batch_execute(&ledger).await.unwrap();
        // Without hints to other processes: their answers are not the ones to cut.
        let store = PgStore::builder().schema(schema.clone()).pool_size(1).wakeups(WakeupMode::Local);
        let store = store.connect(&proxy.url).await.unwrap();
        // Every statement is prepared by now, so that the next answer is the one that counts.
        for _ in 0..2 {
            store.enqueue(&[NewJob::builder("warm", "up").build().unwrap()]).await.unwrap();
            let warm = store.dequeue(&Dequeue::new("warm", "w").unwrap()).await.unwrap().remove(0);
            store.settle(&[(warm.receipt(), Verdict::done())]).await.unwrap();
        }
        store.enqueue(&[NewJob::builder("q", "k").build().unwrap()]).await.unwrap();
        let job = store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap().remove(0);
        Self { proxy, store, direct, schema, job }
    }

    async fn worth(&self) -> ReceiptStatus {
        self.store.receipts(&[self.job.receipt()]).await.unwrap().remove(0)
    }
}

const COMPLETED: ReceiptStatus = ReceiptStatus::Finished { status: FinalStatus::Completed };

#[tokio::test(flavor = "multi_thread")]
async fn a_verdict_whose_answer_is_lost() {
    let scene = Scene::new().await;
    scene.proxy.cut_the_next_answer();
    let error = scene.store.settle(&[(scene.job.receipt(), Verdict::done())]).await.unwrap_err();
    assert!(matches!(error, StoreError::Unknown { operation: "settle", .. }), "{error}");
    assert_eq!(scene.worth().await, COMPLETED);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_whose_answer_is_lost() {
    let scene = Scene::new().await;
    let job = NewJob::builder("mail", "k").build().unwrap();
    scene.proxy.cut_the_next_answer();
    let error = scene.store.enqueue(std::slice::from_ref(&job)).await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    let mails = scene.direct.stats(&"mail".parse().unwrap()).await.unwrap();
    assert_eq!(mails[0].live(), 1);
    scene.store.enqueue(&[job]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_whose_answer_is_lost_can_be_asked_again() {
    let scene = Scene::new().await;
    scene.store.get(scene.job.id).await.unwrap();
    scene.proxy.cut_the_next_answer();
    let error = scene.store.get(scene.job.id).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(scene.store.get(scene.job.id).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost() {
    let scene = Scene::new().await;
    let mut conn = scene.store.pool().get().await.unwrap();
    AnsiTransactionManager::begin_transaction(&mut *conn).await.unwrap();
    let insert = diesel::sql_query(format!("INSERT INTO {}.ledger VALUES (1)", scene.schema));
    diesel_async::RunQueryDsl::execute(insert, &mut conn).await.unwrap();
    scene.store.ack_in(&mut conn, &scene.job.receipt(), Json::null()).await.unwrap().fate();
    scene.proxy.cut_the_next_answer();
    assert!(AnsiTransactionManager::commit_transaction(&mut *conn).await.is_err());
    drop(Object::take(conn));
    assert_eq!(scene.worth().await, COMPLETED);
    assert_eq!(ledger(&scene).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_lost_before_the_commit() {
    let scene = Scene::new().await;
    let mut conn = scene.store.pool().get().await.unwrap();
    AnsiTransactionManager::begin_transaction(&mut *conn).await.unwrap();
    let insert = diesel::sql_query(format!("INSERT INTO {}.ledger VALUES (1)", scene.schema));
    diesel_async::RunQueryDsl::execute(insert, &mut conn).await.unwrap();
    scene.proxy.cut_the_next_answer();
    let error = scene.store.ack_in(&mut conn, &scene.job.receipt(), Json::null()).await.unwrap_err();
    assert!(error.is_retryable(), "a transaction that cannot commit has done nothing: {error}");
    drop(Object::take(conn));
    assert!(matches!(scene.worth().await, ReceiptStatus::Held { .. }));
    assert_eq!(ledger(&scene).await, 0);
    scene.direct.settle(&[(scene.job.receipt(), Verdict::done())]).await.unwrap();
}

async fn ledger(scene: &Scene) -> i64 {
    #[derive(diesel::QueryableByName)]
    struct Count {
        #[diesel(sql_type = BigInt)]
        count: i64,
    }
    let query = diesel::sql_query(format!("SELECT count(*) FROM {}.ledger", scene.schema));
    let mut conn = scene.direct.pool().get().await.unwrap();
    let rows: Vec<Count> = diesel_async::RunQueryDsl::load(query, &mut conn).await.unwrap();
    rows[0].count
}
