//! Connections and transactions: what users' settings cannot spoil, what a given-up transaction can no longer do, and encryption.

use diesel::sql_types::BigInt;
use diesel_async::{
    AnsiTransactionManager, AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection, TransactionManager,
};
use leasehold_core::{Dequeue, IdempotencyKey, Job, Json, NewJob, Store, StoreError, TxStore};
use leasehold_mysql::MysqlStore;
use leasehold_servers::{Mysql, MysqlFlavor};

async fn leased(store: &MysqlStore, count: u32) -> Vec<Job> {
    let jobs = vec![NewJob::builder("q", "k").build().unwrap(); count as usize];
    store.enqueue(&jobs).await.unwrap();
    store.dequeue(&Dequeue::new("q", "w").unwrap().limit(count).unwrap()).await.unwrap()
}

/// Two transactions lock each other's jobs. One is given up: the store says so, and its commit is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_the_server_has_given_up_cannot_commit() {
    for variable in crate::support::BOTH {
        let fresh = crate::support::Fresh::on(variable).await;
        let store = fresh.store().await;
        let jobs = leased(&store, 2).await;
        let (mut one, mut two) = (store.pool().get().await.unwrap(), store.pool().get().await.unwrap());
        for conn in [&mut one, &mut two] {
            AnsiTransactionManager::begin_transaction(&mut **conn).await.unwrap();
        }
        store.ack_in(&mut one, &jobs[0].receipt(), Json::null()).await.unwrap().fate();
        store.ack_in(&mut two, &jobs[1].receipt(), Json::null()).await.unwrap().fate();
        let [zeroth, other] = [jobs[0].receipt(), jobs[1].receipt()];
        let (first, second) = tokio::join!(
            store.ack_in(&mut one, &other, Json::null()),
            store.ack_in(&mut two, &zeroth, Json::null()),
        );
        // The survivor waits until the other is gone, and then finds the job as it was before.
        let (given_up, mut loser, survivor, mut winner) = match (first, second) {
            (Err(error), other) => (error, one, other, two),
            (other, Err(error)) => (error, two, other, one),
            (Ok(_), Ok(_)) => panic!("both have settled both jobs"),
        };
        assert!(matches!(given_up, StoreError::Unavailable { .. }), "{given_up}");
        AnsiTransactionManager::commit_transaction(&mut *loser).await.unwrap_err();
        survivor.unwrap().fate();
        AnsiTransactionManager::commit_transaction(&mut *winner).await.unwrap();
        for job in jobs {
            assert!(store.get(job.id).await.unwrap().unwrap().finished().is_some());
        }
        fresh.drop().await;
    }
}

/// An idle transaction that has looked at an empty queue keeps nobody from enqueueing.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_to_enqueue_into_an_empty_queue() {
    for variable in crate::support::BOTH {
        let fresh = crate::support::Fresh::on(variable).await;
        let store = fresh.store().await;
        let mut conn = store.pool().get().await.unwrap();
        AnsiTransactionManager::begin_transaction(&mut *conn).await.unwrap();
        let stale = leased(&store, 1).await.remove(0).receipt();
        store.ack(&stale, Json::null()).await.unwrap().fate();
        let lost = store.ack_in(&mut conn, &stale, Json::null()).await.unwrap_err();
        assert!(lost.is_lease_lost());
        store.enqueue(&[NewJob::builder("q", "k").unique_key("a").build().unwrap()]).await.unwrap();
        AnsiTransactionManager::rollback_transaction(&mut *conn).await.unwrap();
        fresh.drop().await;
    }
}

/// Zones, modes and languages of the server's are not the store's.
#[tokio::test(flavor = "multi_thread")]
async fn times_are_utc_and_good_after_2038_whatever_the_server_thinks() {
    for flavor in [MysqlFlavor::Mysql, MysqlFlavor::Mariadb] {
        let extra = [
            ("default-time-zone", "+05:45"),
            ("sql-mode", "ANSI,TRADITIONAL"),
            ("transaction-isolation", "SERIALIZABLE"),
            ("auto-increment-increment", "3"),
        ];
        let server =
            tokio::task::spawn_blocking(move || Mysql::start(flavor, &extra).unwrap()).await.unwrap();
        let store = MysqlStore::connect(&server.url()).await.unwrap();
        store.migrate().await.unwrap();
        let here = chrono::Utc::now();
        let there = store.now().await.unwrap();
        assert!((there - here).num_minutes().abs() < 5, "{there} is not {here}");
        let at = "9999-12-31T23:59:59.999999Z".parse().unwrap();
        let late = NewJob::builder("q", "k").at(at).build().unwrap();
        let answers = store.enqueue(&[late.clone(), late]).await.unwrap();
        assert_eq!(answers[1].id.get() - answers[0].id.get(), 3);
        for answer in answers {
            assert_eq!(store.get(answer.id).await.unwrap().unwrap().live().unwrap().available_at, at);
        }
        tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
    }
}

/// With the server's authority named the connection is encrypted, without it is refused.
#[tokio::test(flavor = "multi_thread")]
async fn connections_can_be_encrypted() {
    let directory = Certificates::new();
    for flavor in [MysqlFlavor::Mysql, MysqlFlavor::Mariadb] {
        let files = [
            ("ssl-ca", directory.path("ca")),
            ("ssl-cert", directory.path("cert")),
            ("ssl-key", directory.path("key")),
        ];
        let start = move || {
            let mut extra: Vec<(&str, &str)> =
                files.iter().map(|(name, path)| (*name, path.as_str())).collect();
            extra.push(("require-secure-transport", "OFF"));
            Mysql::start(flavor, &extra).unwrap()
        };
        let server = tokio::task::spawn_blocking(start).await.unwrap();
        let url = server.url();
        let refused = MysqlStore::connect(&format!("{url}?require_ssl=true")).await.unwrap_err();
        let why = format!("{refused:?}");
        assert!(matches!(refused, StoreError::Unavailable { .. }) && why.contains("UnknownIssuer"), "{why}");
        server.query("SET GLOBAL require_secure_transport = ON").unwrap();
        let plain = MysqlStore::connect(&url).await.unwrap_err();
        assert!(matches!(plain, StoreError::Unavailable { .. }), "{plain}");
        let store = MysqlStore::connect(&format!("{url}?ssl_ca={}", directory.path("ca"))).await.unwrap();
        store.migrate().await.unwrap();
        store.policies().await.unwrap();
        tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
    }
}

/// An authority and a server's certificate by it, in files that every account may read; gone when this is dropped.
struct Certificates(std::path::PathBuf);

impl Certificates {
    fn new() -> Self {
        let directory = std::env::temp_dir().join(format!("leasehold-mysql-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let files = Self(directory);
        let authority = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = params.self_signed(&authority).unwrap();
        let issuer = rcgen::Issuer::new(params, authority);
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let cert = params.signed_by(&key, &issuer).unwrap();
        for (name, text) in [("ca", ca.pem()), ("cert", cert.pem()), ("key", key.serialize_pem())] {
            std::fs::write(files.path(name), text).unwrap();
        }
        files
    }

    fn path(&self, name: &str) -> String {
        self.0.join(format!("{name}.pem")).to_str().unwrap().to_owned()
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A document that no packet has room for is refused when the store is built, not when it is sent.
#[tokio::test(flavor = "multi_thread")]
async fn large_documents_are_kept_or_refused_before_they_are_sent() {
    for variable in crate::support::BOTH {
        let fresh = crate::support::Fresh::on(variable).await;
        let builder = MysqlStore::builder().payload_limit(64 << 20).unwrap();
        let refused = builder.connect(&fresh.url).await.unwrap_err();
        assert!(
            matches!(&refused, StoreError::Invalid(invalid) if invalid.field == "payload_limit"),
            "{refused}"
        );
        let store = fresh.store().await;
        let text = "\"".repeat(500_000);
        let job = NewJob::builder("q", "k").payload(&text).build().unwrap();
        let jobs = vec![job; 10];
        let answers = store.enqueue(&jobs).await.unwrap();
        let leased = store.dequeue(&Dequeue::new("q", "w").unwrap().limit(10).unwrap()).await.unwrap();
        assert_eq!(leased.len(), answers.len());
        assert!(leased.iter().all(|job| job.payload.to::<String>().unwrap() == text));
        let items: Vec<_> = leased
            .iter()
            .enumerate()
            .map(|(n, job)| {
                (job.receipt(), leasehold_core::Verdict::done_with(&format!("{text}{n}")).unwrap())
            })
            .collect();
        assert!(store.settle(&items).await.unwrap().iter().all(|outcome| !outcome.is_lost()));
        fresh.drop().await;
    }
}

/// Of the calls in a transaction only `enqueue_in` changes LAST_INSERT_ID() of the session: docs/adr/0037-last-insert-id.md.
#[tokio::test(flavor = "multi_thread")]
async fn only_enqueuing_changes_the_last_insert_id() {
    for variable in crate::support::BOTH {
        let fresh = crate::support::Fresh::on(variable).await;
        let store = fresh.store().await;
        let jobs = leased(&store, 3).await;
        let mut conn = store.pool().get().await.unwrap();
        AnsiTransactionManager::begin_transaction(&mut *conn).await.unwrap();
        conn.batch_execute("DO LAST_INSERT_ID(4711)").await.unwrap();
        store.lock_in(&mut conn, jobs[0].receipt()).await.unwrap();
        let _settled = store.ack_in(&mut conn, &jobs[0].receipt(), Json::null()).await.unwrap();
        let _settled = store.nack_in(&mut conn, &jobs[1].receipt(), Json::null()).await.unwrap();
        assert!(store.once_in(&mut conn, &IdempotencyKey::new("once").unwrap()).await.unwrap());
        assert_eq!(last_insert_id(&mut conn).await, 4711, "{variable}");
        let new = [NewJob::builder("q", "k").build().unwrap()];
        let new = store.enqueue_in(&mut conn, &new).await.unwrap().remove(0).id;
        assert_eq!(last_insert_id(&mut conn).await, new.get(), "{variable}");
        AnsiTransactionManager::commit_transaction(&mut *conn).await.unwrap();
        fresh.drop().await;
    }
}

async fn last_insert_id(conn: &mut AsyncMysqlConnection) -> i64 {
    #[derive(diesel::QueryableByName)]
    struct Id {
        #[diesel(sql_type = BigInt)]
        id: i64,
    }
    let asked = diesel::sql_query("SELECT CAST(LAST_INSERT_ID() AS SIGNED) AS id");
    asked.get_result::<Id>(conn).await.unwrap().id
}
