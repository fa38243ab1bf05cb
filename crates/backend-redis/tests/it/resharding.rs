//! A slot is moved from master to master, key by key, while others enqueue and work: each job is done, and once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold_core::{
    Dequeue, Job, JobId, NewJob, Queues, Receipt, ReceiptStatus, SettleOutcome, Store, Verdict,
};
use leasehold_redis::RedisStore;
use leasehold_servers::{Redis, RedisCluster, RedisVersion};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue};

use crate::cluster::PATIENT_NODES;

const PATIENCE: Duration = Duration::from_secs(90);
const QUEUES: usize = 40;

/// Does it until the cluster does not refuse it any more.
macro_rules! patiently {
    ($call:expr) => {{
        let deadline = Instant::now() + PATIENCE;
        loop {
            match $call.await {
                Err(error) if error.is_retryable() && Instant::now() < deadline => {
                    tokio::task::yield_now().await;
                }
                answer => break answer.unwrap(),
            }
        }
    }};
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_of_redis_is_moved() {
    moved_under_load(RedisVersion::Redis7, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_of_valkey_is_moved() {
    moved_under_load(RedisVersion::Valkey, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_of_several_shards_are_moved() {
    moved_under_load(RedisVersion::Valkey, 4).await;
}

async fn moved_under_load(version: RedisVersion, shards: u32) {
    let cluster = RedisCluster::start(version, 0, &PATIENT_NODES).unwrap();
    // A machine that stands still for seconds makes no answer late: whether a job was accepted must be known.
    let builder = RedisStore::builder().shards(shards).unwrap().response_timeout(PATIENCE);
    let before = builder.clone().connect(&cluster.url()).await.unwrap();
    let mut accepted = enqueue(&before, 0, 400).await;
    // After a restart a server lists the keys of a slot in another order.
    for node in cluster.masters() {
        node.restart().unwrap();
    }
    let deadline = Instant::now() + PATIENCE;
    for node in cluster.masters() {
        while !node.command("CLUSTER INFO").unwrap().contains("cluster_state:ok") {
            assert!(Instant::now() < deadline, "the cluster did not come up again");
            tokio::task::yield_now().await;
        }
    }
    let store = patiently!(builder.clone().connect(&cluster.url()));
    let [is_over, is_all] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let mut producers = tokio::task::JoinSet::new();
    for number in 1..3 {
        let (store, is_over) = (store.clone(), Arc::clone(&is_over));
        producers.spawn(async move {
            let mut ids = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                ids.extend(enqueue(&store, number, 5).await);
            }
            ids
        });
    }
    let mut workers = tokio::task::JoinSet::new();
    let named: Vec<String> = (0..QUEUES).map(|number| format!("room:{number}")).collect();
    for queues in ["room:*".parse().unwrap(), Queues::named(named.iter().map(String::as_str)).unwrap()] {
        workers.spawn(work(store.clone(), queues, Arc::clone(&is_all)));
    }
    for _ in 0..2 {
        for shard in 0..shards {
            move_slot(&cluster, &format!("{{leasehold:{shard}}}")).await;
        }
    }
    is_over.store(true, Ordering::Relaxed);
    while let Some(ids) = producers.join_next().await {
        accepted.extend(ids.unwrap());
    }
    is_all.store(true, Ordering::Relaxed);
    let mut settled: HashMap<JobId, u32> = HashMap::new();
    while let Some(done) = workers.join_next().await {
        done.unwrap().into_iter().for_each(|id| *settled.entry(id).or_default() += 1);
    }
    let missing: Vec<_> = accepted.iter().filter(|id| !settled.contains_key(id)).collect();
    assert!(missing.is_empty(), "{} of {} jobs were lost: {missing:?}", missing.len(), accepted.len());
    assert!(settled.values().all(|count| *count == 1), "{settled:?}");
    assert_eq!(settled.len(), accepted.len());
}

/// Accepts jobs in many queues, some of them with priorities.
async fn enqueue(store: &RedisStore, caller: usize, count: usize) -> Vec<JobId> {
    let mut ids = Vec::new();
    for number in 0..count {
        let queue = format!("room:{}", (number * 7 + caller) % QUEUES);
        let job = NewJob::builder(queue, "task").priority((number % 3) as i32).build().unwrap();
        ids.push(patiently!(store.enqueue(std::slice::from_ref(&job)))[0].id);
    }
    ids
}

/// Leases and settles until all jobs were accepted and nothing is left: what was settled.
async fn work(store: RedisStore, queues: Queues, is_all: Arc<AtomicBool>) -> Vec<JobId> {
    let request = Dequeue { queues, ..Dequeue::new("room:0", "w").unwrap().limit(10).unwrap() };
    let mut settled = Vec::new();
    loop {
        let was_all = is_all.load(Ordering::Relaxed);
        let jobs = patiently!(store.dequeue(&request));
        if jobs.is_empty() && was_all {
            return settled;
        }
        let receipts = jobs.iter().map(Job::receipt).collect();
        settled.extend(complete(&store, receipts).await);
    }
}

/// Settles these jobs, as a worker does. If the shards of one batch do not all answer, nobody knows what became of it: the
/// receipts tell, and what is held still is settled again.
async fn complete(store: &RedisStore, mut held: Vec<Receipt>) -> Vec<JobId> {
    let (mut settled, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    while !held.is_empty() {
        assert!(Instant::now() < deadline, "{held:?} are still held after {PATIENCE:?}");
        let items: Vec<_> = held.iter().map(|receipt| (*receipt, Verdict::done())).collect();
        match store.settle(&items).await {
            Ok(outcomes) => {
                let done = outcomes.iter().map(|outcome| matches!(outcome, SettleOutcome::Settled(_)));
                settled
                    .extend(held.drain(..).zip(done).filter_map(|(receipt, done)| done.then_some(receipt)));
            }
            Err(error) => {
                assert!(error.is_retryable() || error.is_unknown(), "{error:?}");
                let told = patiently!(store.receipts(&held));
                let is = |status: &ReceiptStatus| matches!(status, ReceiptStatus::Finished { .. });
                let done = held.iter().zip(&told).filter(|(_, status)| is(status));
                settled.extend(done.map(|(receipt, _)| *receipt));
                let mut told = told.iter();
                held.retain(|_| {
                    told.next().is_some_and(|status| matches!(status, ReceiptStatus::Held { .. }))
                });
            }
        }
    }
    settled.into_iter().map(|receipt| receipt.job).collect()
}

async fn connection(node: &Redis) -> MultiplexedConnection {
    // The driver's own patience, half a second, is not enough for a busy machine.
    let patient = AsyncConnectionConfig::new()
        .set_response_timeout(Some(PATIENCE))
        .set_connection_timeout(Some(PATIENCE));
    redis::Client::open(node.url())
        .unwrap()
        .get_multiplexed_async_connection_with_config(&patient)
        .await
        .unwrap()
}

/// Moves the slot of a tag to the next master, key by key, in any order.
async fn move_slot(cluster: &RedisCluster, tag: &str) {
    let mut nodes = Vec::new();
    for node in cluster.masters() {
        let mut conn = connection(node).await;
        let id: String = redis::cmd("CLUSTER").arg("MYID").query_async(&mut conn).await.unwrap();
        nodes.push((node.port(), id, conn));
    }
    let slot: u16 = redis::cmd("CLUSTER").arg("KEYSLOT").arg(tag).query_async(&mut nodes[0].2).await.unwrap();
    let from = owner(&mut nodes, slot).await;
    let to = (from + 1) % nodes.len();
    let (from_id, (port, to_id)) = (nodes[from].1.clone(), (nodes[to].0, nodes[to].1.clone()));
    set_slot(&mut nodes[to].2, slot, &["IMPORTING", &from_id]).await;
    set_slot(&mut nodes[from].2, slot, &["MIGRATING", &to_id]).await;
    loop {
        let mut list = redis::cmd("CLUSTER");
        list.arg("GETKEYSINSLOT").arg(slot).arg(100_000);
        let mut keys: Vec<String> = answered(&mut nodes[from].2, &list).await;
        if keys.is_empty() {
            break;
        }
        fastrand::shuffle(&mut keys);
        for key in keys {
            let mut migrate = redis::cmd("MIGRATE");
            migrate.arg("127.0.0.1").arg(port).arg(&key).arg(0).arg(60_000);
            let moved: String = answered(&mut nodes[from].2, &migrate).await;
            assert!(moved == "OK" || moved == "NOKEY", "{key}: {moved}");
        }
    }
    set_slot(&mut nodes[to].2, slot, &["NODE", &to_id]).await;
    for (_, _, conn) in &mut nodes {
        set_slot(conn, slot, &["NODE", &to_id]).await;
    }
}

async fn set_slot(conn: &mut MultiplexedConnection, slot: u16, words: &[&str]) {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SETSLOT").arg(slot).arg(words);
    assert_eq!(answered::<String>(conn, &command).await, "OK");
}

/// What a node says, once it is not cut off from the others: on a busy machine it may take itself to be for a moment.
async fn answered<T: FromRedisValue>(conn: &mut MultiplexedConnection, command: &Cmd) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match command.query_async(conn).await {
            Err(error) if error.code() == Some("CLUSTERDOWN") && Instant::now() < deadline => {
                tokio::task::yield_now().await;
            }
            answer => return answer.unwrap(),
        }
    }
}

/// The place of the master that has a slot, once all of them say so: what a master says of a slot that was moved just now may be what it heard before.
async fn owner(nodes: &mut [(u16, String, MultiplexedConnection)], slot: u16) -> usize {
    let ids: Vec<String> = nodes.iter().map(|(_, id, _)| id.clone()).collect();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut owners = Vec::new();
        for (_, _, conn) in nodes.iter_mut() {
            let list: String = redis::cmd("CLUSTER").arg("NODES").query_async(conn).await.unwrap();
            owners.push(owner_in(&list, &ids, slot));
        }
        match owners[0] {
            Some(owner) if owners.iter().all(|other| *other == Some(owner)) => return owner,
            _ => assert!(Instant::now() < deadline, "the owners of slot {slot} are {owners:?}"),
        }
        tokio::task::yield_now().await;
    }
}

/// The place of the id that has a slot, in what `CLUSTER NODES` answers.
fn owner_in(list: &str, ids: &[String], slot: u16) -> Option<usize> {
    let has = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        matches!((first.parse::<u16>(), last.parse::<u16>()), (Ok(first), Ok(last)) if (first..=last).contains(&slot))
    };
    let line = list.lines().find(|line| line.split(' ').skip(8).any(has))?;
    ids.iter().position(|id| line.starts_with(id.as_str()))
}
