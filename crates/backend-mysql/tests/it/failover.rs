//! A failover that leaves connections open to a node that is read-only from then on: the store gives them up, and goes on by new ones.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::pooled_connection::deadpool::Pool;
use diesel_async::{AnsiTransactionManager, AsyncMysqlConnection, SimpleAsyncConnection, TransactionManager};
use leasehold_core::{
    BatchSize, Dequeue, Epoch, JobId, LeaseFor, NewJob, Receipt, Result, Store, StoreError, TxStore,
};
use leasehold_mysql::MysqlStore;
use leasehold_servers::{Mysql, MysqlFlavor};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Fresh, MARIADB, MYSQL, plain, with_database};

/// How many connections are open when the failover comes.
const CONNECTIONS: usize = 4;
/// So many calls may fail. The other connections are given up with the first.
const TRIES: usize = 2;

/// Both servers, and the variables that have the URLs of those that take over.
const BOTH: [(MysqlFlavor, &str); 2] = [(MysqlFlavor::Mysql, MYSQL), (MysqlFlavor::Mariadb, MARIADB)];

/// Leads new connections to one server, and later to another. Those that are open stay where they are.
struct Proxy {
    port: u16,
    server: Arc<Mutex<String>>,
}

impl Proxy {
    async fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = Arc::new(Mutex::new(server.to_owned()));
        let leads_to = Arc::clone(&server);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let server = leads_to.lock().unwrap().clone();
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(server).await.unwrap();
                    drop(tokio::io::copy_bidirectional(&mut client, &mut server).await);
                });
            }
        });
        Self { port, server }
    }

    fn leads_to(&self, server: &str) {
        server.clone_into(&mut self.server.lock().unwrap());
    }
}

/// `host:port` of a URL.
fn address(url: &str) -> &str {
    url.split('@').nth(1).unwrap().split('/').next().unwrap()
}

async fn start(flavor: MysqlFlavor) -> Mysql {
    tokio::task::spawn_blocking(move || Mysql::start(flavor, &[]).unwrap()).await.unwrap()
}

async fn end(server: Mysql) {
    tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
}

/// Opens as many connections as the store may have.
async fn fill(store: &MysqlStore) {
    let held = (0..CONNECTIONS).map(|_| store.now());
    futures_util::future::try_join_all(held).await.unwrap();
}

async fn recovers<T>(what: &str, call: impl AsyncFn() -> Result<T>) -> T {
    let mut errors = Vec::new();
    for _ in 0..TRIES {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => {
                assert!(matches!(error, StoreError::Unavailable { .. }), "{what}: {error:?}");
                errors.push(error);
            }
        }
    }
    panic!("{what}: {errors:?}");
}

/// 1290: the old primary gets `read_only` and keeps its sessions, and a proxy leads new ones to the new primary.
#[tokio::test(flavor = "multi_thread")]
async fn the_old_primary_keeps_its_sessions() {
    for (flavor, variable) in BOTH {
        let new = Fresh::on(variable).await;
        let old = start(flavor).await;
        let name = &new.name;
        // `read_only` does not hold for users with every privilege.
        let user = [
            format!("CREATE USER IF NOT EXISTS u_{name}@'%' IDENTIFIED BY 'word'"),
            format!("GRANT ALL ON {name}.* TO u_{name}@'%'"),
        ];
        plain(&old.url()).await.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        for url in [&with_database(&old.url(), name), &new.url] {
            MysqlStore::connect(url).await.unwrap().migrate().await.unwrap();
            let mut admin = plain(url).await;
            for text in &user {
                admin.batch_execute(text).await.unwrap();
            }
        }
        let proxy = Proxy::to(address(&old.url())).await;
        let url = format!("mysql://u_{name}:word@127.0.0.1:{}/{name}", proxy.port);
        let store = MysqlStore::builder().pool_size(CONNECTIONS).connect(&url).await.unwrap();
        fill(&store).await;
        store.enqueue(&[NewJob::builder("old", "k").build().unwrap()]).await.unwrap();

        old.query("SET GLOBAL read_only = ON").unwrap();
        proxy.leads_to(address(&new.url));
        recovers("enqueue", async || store.enqueue(&[NewJob::builder("q", "k").build()?]).await).await;
        for _ in 0..CONNECTIONS {
            let old = store.stats(&"old".parse().unwrap()).await.unwrap();
            assert!(
                old.iter().all(|queue| queue.live() == 0),
                "a connection to the old primary is left: {old:?}"
            );
        }
        assert_eq!(store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap().len(), 1);
        drop(store);
        plain(&new.url).await.batch_execute(&format!("DROP USER u_{name}@'%'")).await.unwrap();
        new.drop().await;
        end(old).await;
    }
}

/// 1792: the sessions that were opened before stay read-only. All kinds of connections that the store has.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_stay_read_only_are_given_up() {
    for (flavor, _) in BOTH {
        let server = start(flavor).await;
        let url = server.url();
        MysqlStore::connect(&url).await.unwrap().migrate().await.unwrap();
        server.query("SET GLOBAL TRANSACTION READ ONLY").unwrap();
        let open = || MysqlStore::builder().pool_size(CONNECTIONS).connect(&url);
        let (claims, verdicts, transactions) =
            (open().await.unwrap(), open().await.unwrap(), open().await.unwrap());
        let heartbeats = claims.dedicated().await.unwrap().unwrap();
        let manager =
            AsyncDieselConnectionManager::<AsyncMysqlConnection>::new(url.replacen("mariadb:", "mysql:", 1));
        let pool = Pool::builder(manager).max_size(CONNECTIONS).build().unwrap();
        let users = MysqlStore::from_pool(pool.clone());
        for store in [&claims, &verdicts, &users] {
            fill(store).await;
        }
        heartbeats.now().await.unwrap();
        let in_use = pool.get().await.unwrap();
        let held = [transactions.pool().get().await.unwrap(), transactions.pool().get().await.unwrap()];
        drop(held);
        server.query("SET GLOBAL TRANSACTION READ WRITE").unwrap();

        let job = || NewJob::builder("q", "k").build();
        recovers("enqueue", async || users.enqueue(&[job()?]).await).await;
        drop(in_use); // It is back in the pool, and as old as those that were closed.
        for _ in 0..CONNECTIONS {
            users.enqueue(&[job().unwrap()]).await.unwrap();
        }
        let jobs = recovers("dequeue", async || claims.dequeue(&Dequeue::new("q", "w")?).await).await;
        let (receipt, extend) = (jobs[0].receipt(), LeaseFor::new(Duration::from_secs(60)).unwrap());
        recovers("heartbeat", async || heartbeats.heartbeat(&[receipt], extend).await).await;
        recovers("settle", async || verdicts.ack(&receipt, leasehold_core::Json::null()).await).await.fate();
        let unknown = Receipt { job: JobId::new(1), epoch: Epoch::ZERO };
        claims.receipts(&[unknown]).await.unwrap();
        claims.reclaim(BatchSize::ONE).await.unwrap();

        let transact = async || {
            let mut conn =
                transactions.pool().get().await.map_err(|error| StoreError::unavailable("begin", error))?;
            AnsiTransactionManager::begin_transaction(&mut *conn).await.unwrap();
            let answer = transactions.enqueue_in(&mut conn, &[job()?]).await;
            match &answer {
                Ok(_) => AnsiTransactionManager::commit_transaction(&mut *conn).await.unwrap(),
                Err(_) => drop(AnsiTransactionManager::rollback_transaction(&mut *conn).await),
            }
            answer
        };
        recovers("enqueue_in", transact).await;
        transact().await.unwrap();
        end(server).await;
    }
}
