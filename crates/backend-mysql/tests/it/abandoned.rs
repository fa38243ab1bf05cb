//! Claims whose futures are dropped: they lease nothing, or give back what they have leased.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use diesel::sql_types::BigInt;
use diesel_async::{AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use leasehold_core::{Dequeue, Job, JobId, NewJob, Store};
use leasehold_mysql::MysqlStore;
use leasehold_servers::{Mysql, MysqlFlavor};

use crate::support::{BOTH, Fresh, plain, users_pool};

/// Much longer than anything here takes: a test that is wrong fails, and does not hang.
const DEADLINE: Duration = Duration::from_secs(60);
const ROUNDS: usize = 40;

fn request(queue: &str, limit: u32) -> Dequeue {
    Dequeue::new(queue, "w").unwrap().limit(limit).unwrap()
}

async fn enqueue(store: &MysqlStore, queue: &str, count: usize) -> Vec<JobId> {
    let jobs = vec![NewJob::builder(queue, "k").build().unwrap(); count];
    store.enqueue(&jobs).await.unwrap().iter().map(|answer| answer.id).collect()
}

/// Claims until it has all of the jobs. None has spent an attempt for a claim that nobody has got.
async fn claim_all(store: &MysqlStore, queue: &str, ids: &[JobId]) {
    let (start, mut claimed) = (Instant::now(), BTreeMap::new());
    while claimed.len() < ids.len() {
        assert!(
            start.elapsed() < DEADLINE,
            "{} of {} jobs are leased to nobody",
            ids.len() - claimed.len(),
            ids.len()
        );
        let jobs: Vec<Job> = store.dequeue(&request(queue, 1000)).await.unwrap_or_default();
        claimed.extend(jobs.into_iter().map(|job| (job.id, job.attempts)));
        tokio::task::yield_now().await;
    }
    assert!(claimed.values().all(|attempts| *attempts == 1), "attempts were spent for nothing: {claimed:?}");
    assert!(ids.iter().all(|id| claimed.contains_key(id)));
}

fn claim(store: &MysqlStore, queue: &'static str, limit: u32) -> BoxFuture<'static, ()> {
    let store = store.clone();
    async move { drop(store.dequeue(&request(queue, limit)).await) }.boxed()
}

async fn drop_claims(store: &MysqlStore) {
    for round in 0..ROUNDS {
        let queue = format!("q{round}");
        let ids = enqueue(store, &queue, 3).await;
        let request = request(&queue, 3);
        let mut dropped = store.dequeue(&request);
        let mut is_answered = false;
        // At any moment of it.
        for _ in 0..=round * round / 4 {
            is_answered = (&mut dropped).now_or_never().is_some();
            if is_answered {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(dropped);
        if !is_answered {
            claim_all(store, &queue, &ids).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_nobody_waits_for_leases_nothing() {
    for variable in BOTH {
        let fresh = Fresh::on(variable).await;
        drop_claims(&fresh.store().await).await;
        fresh.drop().await;
    }
}

/// There the statements of a dropped future are not ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_on_a_users_pool_that_nobody_waits_for_leases_nothing() {
    for variable in BOTH {
        let fresh = Fresh::on(variable).await;
        fresh.store().await;
        drop_claims(&MysqlStore::from_pool(users_pool(&fresh.url, &[]))).await;
        fresh.drop().await;
    }
}

/// How many sessions are running a statement in the database of this one.
async fn running(beside: &mut AsyncMysqlConnection) -> i64 {
    #[derive(diesel::QueryableByName)]
    struct Sessions {
        #[diesel(sql_type = BigInt)]
        count: i64,
    }
    let sessions = "SELECT COUNT(*) AS count FROM information_schema.processlist
                    WHERE db = DATABASE() AND command IN ('Query', 'Execute') AND id <> CONNECTION_ID()";
    diesel::sql_query(sessions).get_result::<Sessions>(beside).await.unwrap().count
}

fn signal(server: &Mysql, name: &str) {
    let pid = server.pid().unwrap().to_string();
    assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
}

/// A backup holds a read lock, and claims are given up meanwhile. Then the server stands still, and they are again.
#[tokio::test(flavor = "multi_thread")]
async fn claims_of_a_server_that_stands_still_lease_nothing_afterwards() {
    for flavor in [MysqlFlavor::Mysql, MysqlFlavor::Mariadb] {
        let server = tokio::task::spawn_blocking(move || Mysql::start(flavor, &[]).unwrap()).await.unwrap();
        let fresh = Fresh::at(&server.url()).await;
        let store = fresh.store().await;
        let mut beside = plain(&fresh.url).await;
        let ids = enqueue(&store, "locked", 100).await;
        beside.batch_execute("FLUSH TABLES WITH READ LOCK").await.unwrap();
        for _ in 0..5 {
            let mut claiming = claim(&store, "locked", 20);
            let start = Instant::now();
            while running(&mut beside).await == 0 {
                assert!(start.elapsed() < DEADLINE && (&mut claiming).now_or_never().is_none());
            }
        }
        beside.batch_execute("UNLOCK TABLES").await.unwrap();
        claim_all(&store, "locked", &ids).await;

        let ids = enqueue(&store, "stopped", 100).await;
        // With open connections, on which statements wait in the sockets.
        futures_util::future::join_all((0..10).map(|_| store.now())).await;
        signal(&server, "STOP");
        for _ in 0..10 {
            let mut claiming = claim(&store, "stopped", 20);
            for _ in 0..1000 {
                assert!((&mut claiming).now_or_never().is_none());
                tokio::task::yield_now().await;
            }
        }
        signal(&server, "CONT");
        claim_all(&store, "stopped", &ids).await;
    }
}
