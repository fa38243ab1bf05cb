//! What can happen in a cluster: other masters, dead masters, shards.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold_core::{
    BatchSize, Dequeue, HistoryFilter, JobId, NewJob, Queues, SettleOutcome, Store, StoreError, Verdict,
};
use leasehold_redis::RedisStore;
use leasehold_servers::{Redis, RedisCluster, RedisVersion};

const PATIENCE: Duration = Duration::from_secs(90);

/// No node is to be held to have failed because the machine is busy.
pub(crate) const PATIENT_NODES: [(&str, &str); 1] = [("cluster-node-timeout", "15000")];

fn jobs() -> Vec<NewJob> {
    let queues = (0..300).map(|number| format!("room:{}", number % 30));
    queues.map(|queue| NewJob::builder(queue, "task").build().unwrap()).collect()
}

/// Waits until the replica of a master has all that was written: replication takes its time.
async fn replicated(master: &Redis) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let info = master.command("INFO replication").unwrap();
        let offset = |name: &str| info.split(name).nth(1)?.split([',', '\r']).next()?.parse::<u64>().ok();
        let (ours, theirs) = (offset("master_repl_offset:"), offset(",offset="));
        if ours.is_some() && ours == theirs {
            return;
        }
        assert!(Instant::now() < deadline, "{info}");
        tokio::task::yield_now().await;
    }
}

/// Leases and settles until nothing is left, whatever happens meanwhile. How often each job was settled.
async fn drain(store: &RedisStore, ahead: &AtomicU64, mut after: impl FnMut(usize)) -> HashMap<JobId, u32> {
    let request = Dequeue::new("room:*", "w").unwrap().limit(10).unwrap();
    let mut settled = HashMap::new();
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "{} jobs were settled in {PATIENCE:?}", settled.len());
        let leased = match store.dequeue(&request).await {
            Ok(leased) => leased,
            Err(error) => {
                assert!(error.is_unknown() || error.is_retryable(), "{error:?}");
                continue;
            }
        };
        let items: Vec<_> = leased.iter().map(|job| (job.receipt(), Verdict::done())).collect();
        match store.settle(&items).await {
            Ok(outcomes) => {
                for ((receipt, _), outcome) in items.iter().zip(outcomes) {
                    *settled.entry(receipt.job).or_default() +=
                        u32::from(matches!(outcome, SettleOutcome::Settled(_)));
                }
            }
            Err(error) => assert!(error.is_unknown() || error.is_retryable(), "{error:?}"),
        }
        after(settled.len());
        if leased.is_empty() {
            let Ok(stats) = store.stats(&Queues::all()).await else { continue };
            if stats.iter().all(|queue| queue.live() == 0) {
                return settled;
            }
            // What is left was leased by calls whose answers were lost.
            ahead.fetch_add(3_600_000_000, Ordering::Relaxed);
            let _ = store.reclaim(BatchSize::MAX).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_master_is_replaced_and_nothing_happens_twice() {
    let cluster = RedisCluster::start(RedisVersion::Redis7, 1, &[]).unwrap();
    let ahead = Arc::new(AtomicU64::new(0));
    let builder = RedisStore::builder().clock_ahead(Arc::clone(&ahead));
    let store = builder.connect(&cluster.url()).await.unwrap();
    let accepted = store.enqueue(&jobs()).await.unwrap();
    for master in cluster.masters() {
        replicated(master).await;
    }
    let mut killed = false;
    let settled = drain(&store, &ahead, |count| {
        if count >= 100 && !killed {
            killed = true;
            cluster.masters()[0].kill().unwrap();
        }
    })
    .await;
    assert!(killed);
    assert!(settled.values().all(|count| *count <= 1), "{settled:?}");
    let mut finished = Vec::new();
    let mut filter = HistoryFilter::default();
    loop {
        let page = store.history(&filter).await.unwrap();
        finished.extend(page.items.iter().map(|job| job.id));
        match page.next {
            Some(next) => filter.after = Some(next),
            None => break,
        }
    }
    let mut expected: Vec<JobId> = accepted.iter().map(|answer| answer.id).collect();
    expected.sort_unstable();
    assert_eq!(finished, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_master_is_found_without_an_error() {
    let cluster = RedisCluster::start(RedisVersion::Redis7, 1, &PATIENT_NODES).unwrap();
    let store = RedisStore::connect(&cluster.url()).await.unwrap();
    store.enqueue(&jobs()).await.unwrap();
    for (master, replica) in cluster.masters().iter().zip(cluster.replicas()) {
        assert_eq!(replica.command("CLUSTER FAILOVER").unwrap(), "+OK");
        let deadline = Instant::now() + PATIENCE;
        while !master.command("INFO replication").unwrap().contains("role:slave") {
            assert!(Instant::now() < deadline, "no other master was chosen");
            tokio::task::yield_now().await;
        }
    }
    store.enqueue(&jobs()).await.unwrap();
    let leased = store.dequeue(&Dequeue::new("room:*", "w").unwrap().limit(1000).unwrap()).await.unwrap();
    assert_eq!(leased.len(), 600);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_keeps_its_shards() {
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    let url = server.url();
    let first = RedisStore::builder().shards(4).unwrap().connect(&url).await.unwrap();
    assert!(!first.capabilities().atomic_batches);
    let error = RedisStore::builder().shards(2).unwrap().connect(&url).await.unwrap_err();
    assert!(matches!(error, StoreError::Conflict { .. }), "{error:?}");
    assert!(error.to_string().contains("4 shards, not 2"), "{error}");
    first.enqueue(&jobs()).await.unwrap();
    let second = RedisStore::connect(&url).await.unwrap();
    let leased = second.dequeue(&Dequeue::new("room:*", "w").unwrap().limit(1000).unwrap()).await.unwrap();
    assert_eq!(leased.len(), 300);
    for bad in [0, 257] {
        assert_eq!(RedisStore::builder().shards(bad).unwrap_err().field, "shards");
    }
}
