//! The numbers of jobs: a server that has lost some gives none again, and no shard has to ask another.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use leasehold_core::{Dequeue, JobId, Json, NewJob, Queues, Record, SettleOutcome, Store, Verdict};
use leasehold_redis::RedisStore;
use leasehold_servers::{Redis, RedisCluster, RedisVersion};

const SHARDS: u32 = 4;

fn jobs(queues: &[&str], count: usize, word: &str) -> Vec<NewJob> {
    let job = |number: usize| NewJob::builder(queues[number % queues.len()], "task").payload(word).build();
    (0..count).map(|number| job(number).unwrap()).collect()
}

/// Forgets the sequence of each shard, as a failover may that has lost the last writes.
fn forget_sequences(server: &Redis) {
    for shard in 0..SHARDS {
        server.command(&format!("DEL {{leasehold:{shard}}}:sequence")).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lost_its_last_numbers_overwrites_no_job() {
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    let builder = RedisStore::builder().shards(SHARDS).unwrap();
    for queues in [&["a"][..], &["b", "c", "d", "e", "f"]] {
        let store = builder.clone().connect(&server.url()).await.unwrap();
        // More than there are milliseconds in the meantime: the sequence is ahead of the clock.
        let first: Vec<JobId> =
            store.enqueue(&jobs(queues, 5000, "first")).await.unwrap().iter().map(|one| one.id).collect();
        let named = Dequeue::new(Queues::named(queues.iter().copied()).unwrap(), "alice").unwrap();
        let leased = store.dequeue(&named.limit(50).unwrap()).await.unwrap();
        assert_eq!(leased.len(), 50);
        let done: Vec<_> = leased[..10].iter().map(|job| (job.receipt(), Verdict::done())).collect();
        store.settle(&done).await.unwrap();

        forget_sequences(&server);
        let other = builder.clone().connect(&server.url()).await.unwrap();
        let second: Vec<JobId> =
            other.enqueue(&jobs(queues, 100, "second")).await.unwrap().iter().map(|one| one.id).collect();
        assert!(second.is_sorted() && first.is_sorted());
        let all: BTreeSet<JobId> = first.iter().chain(&second).copied().collect();
        assert_eq!(all.len(), 5100, "ids were given twice");
        let rest: Vec<_> = leased[10..].iter().map(|job| (job.receipt(), Verdict::done())).collect();
        let outcomes = store.settle(&rest).await.unwrap();
        assert!(outcomes.iter().all(|outcome| matches!(outcome, SettleOutcome::Settled(_))), "{outcomes:?}");
        let mut records = Vec::new();
        for id in &first {
            records.push(store.get(*id).await.unwrap());
        }
        let word = |record: &Record| match record {
            Record::Live(job) => job.payload.clone(),
            Record::Finished(job) => job.payload.clone(),
        };
        let expected = Json::new("first").unwrap();
        assert!(records.iter().all(|record| record.as_ref().is_some_and(|record| word(record) == expected)));
    }
}

/// One caller's ids rise, whichever shards the jobs go to.
#[tokio::test(flavor = "multi_thread")]
async fn ids_rise_from_shard_to_shard() {
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    let store = RedisStore::builder().shards(SHARDS).unwrap().connect(&server.url()).await.unwrap();
    let other = RedisStore::builder().shards(SHARDS).unwrap().connect(&server.url()).await.unwrap();
    let mut ids = Vec::new();
    for round in 0..50 {
        let queue = format!("q{round}");
        // The shard of that queue is far ahead.
        other.enqueue(&jobs(&[&queue], 300, "other")).await.unwrap();
        let batch = jobs(&[&queue, "a", "b", "c"], 1 + round % 7, "ours");
        ids.extend(store.enqueue(&batch).await.unwrap().iter().map(|one| one.id));
    }
    assert!(ids.is_sorted_by(|one, next| one < next), "{ids:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_first_shard_others_still_accept_jobs() {
    let settings = [("cluster-require-full-coverage", "no")];
    let cluster = RedisCluster::start(RedisVersion::Redis7, 0, &settings).unwrap();
    let store = RedisStore::connect(&cluster.url()).await.unwrap();
    let queues: Vec<String> = (0..64).map(|number| format!("room:{number}")).collect();
    for queue in &queues {
        store.enqueue(&jobs(&[queue], 1, "before")).await.unwrap();
    }
    let slot = cluster.masters()[0].command("CLUSTER KEYSLOT {leasehold:0}").unwrap();
    let slot: usize = slot.trim_start_matches(':').parse().unwrap();
    let place = (0..3).find(|place| slot < (place + 1) * 16_384 / 3).unwrap();
    cluster.masters()[place].kill().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let others = cluster.masters().iter().enumerate().filter(|(other, _)| *other != place);
    for (_, node) in others {
        while !node.command("CLUSTER INFO").unwrap().contains("cluster_slots_fail:5") {
            assert!(Instant::now() < deadline, "nobody notices that a node is down");
            tokio::task::yield_now().await;
        }
    }
    let mut accepted: HashMap<bool, u32> = HashMap::new();
    for queue in &queues {
        let answer = store.enqueue(&jobs(&[queue], 1, "after")).await;
        *accepted.entry(answer.is_ok()).or_default() += 1;
    }
    assert!(accepted[&true] >= 30, "{accepted:?}: the shards of two masters of three are up");
}
