//! What the server can do to a store: evict, forget scripts, crash, come back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use leasehold_core::{BatchSize, Dequeue, EventKind, JobFilter, NewJob, Queues, Store, StoreError, Verdict};
use leasehold_redis::{KeyPrefix, RedisStore};
use leasehold_servers::{Redis, RedisVersion};

fn job(queue: &str) -> NewJob {
    NewJob::builder(queue, "task").build().unwrap()
}

async fn connect(server: &Redis) -> RedisStore {
    RedisStore::connect(&server.url()).await.unwrap()
}

/// Calls until the store answers. Each call waits for a connection, so that this is no busy loop.
async fn until_answered(store: &RedisStore) {
    let answered = async {
        while store.now().await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), answered).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_evicts_is_refused() {
    let server = Redis::start(RedisVersion::Redis7, &[("maxmemory-policy", "allkeys-lru")]).unwrap();
    let error = RedisStore::connect(&server.url()).await.unwrap_err();
    assert!(matches!(error, StoreError::Conflict { .. }), "{error:?}");
    assert!(error.to_string().contains("allkeys-lru"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_no_file_makes_no_durable_store() {
    let server = Redis::start(RedisVersion::Redis7, &[("appendonly", "no")]).unwrap();
    assert!(!connect(&server).await.capabilities().durable);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_forgotten_the_scripts_is_told_them_again() {
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    let store = connect(&server).await;
    store.enqueue(&[job("q")]).await.unwrap();
    assert_eq!(server.command("SCRIPT FLUSH").unwrap(), "+OK");
    store.enqueue(&[job("q")]).await.unwrap();
    assert_eq!(store.dequeue(&Dequeue::new("q", "w").unwrap().limit(9).unwrap()).await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_takes_nothing_along_that_it_has_answered() {
    let server = Redis::start(RedisVersion::Redis7, &[("appendfsync", "always")]).unwrap();
    let store = connect(&server).await;
    let answers = store.enqueue(&[job("q"), job("q")]).await.unwrap();
    let leased = store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap();
    store.settle(&[(leased[0].receipt(), Verdict::done())]).await.unwrap();

    server.kill().unwrap();
    let down = store.enqueue(&[job("q")]).await.unwrap_err();
    assert!(down.is_unknown() || down.is_retryable(), "{down:?}");

    server.restart().unwrap();
    until_answered(&store).await;
    let stats = store.stats(&Queues::all()).await.unwrap();
    assert_eq!(stats[0].live(), 1);
    let rest = store.dequeue(&Dequeue::new("q", "w").unwrap().limit(9).unwrap()).await.unwrap();
    assert_eq!(rest.iter().map(|job| job.id).collect::<Vec<_>>(), [answers[1].id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_lost_everything_is_a_new_one() {
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    let store = connect(&server).await;
    let other = connect(&server).await;
    store.enqueue(&[job("a"), job("b")]).await.unwrap();
    assert_eq!(server.command("FLUSHALL").unwrap(), "+OK");
    // Somebody was faster, and has as many queues as there were.
    connect(&server).await.enqueue(&[job("x"), job("y"), job("z")]).await.unwrap();

    let mut answers = Vec::new();
    for queue in ["b", "c"] {
        answers.extend(store.enqueue(&[job(queue)]).await.unwrap());
    }
    let found = other.dequeue(&Dequeue::new("*", "w").unwrap().limit(9).unwrap()).await.unwrap();
    assert_eq!(found.len(), 5);
    for answer in answers {
        assert!(other.get(answer.id).await.unwrap().is_some(), "{answer:?}");
    }
    assert!(other.reclaim(BatchSize::MAX).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_are_woken_when_the_server_is_back() {
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    let store = connect(&server).await;
    let mut hints = store.wakeups(&Queues::all()).await.unwrap();
    server.kill().unwrap();
    server.restart().unwrap();
    let hint = tokio::time::timeout(Duration::from_secs(30), hints.next()).await;
    assert_eq!(hint.unwrap(), Some(()));
    until_answered(&store).await;
    store.enqueue(&[job("q")]).await.unwrap();
    let hint = tokio::time::timeout(Duration::from_secs(30), hints.next()).await;
    assert_eq!(hint.unwrap(), Some(()));
}

/// The line of the guide.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_the_permissions_of_the_guide_can_do_all() {
    let guide = include_str!("../../../../docs/redis.md");
    let line = guide.split("ACL SETUSER").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(server.command(&format!("ACL SETUSER {words}")).unwrap(), "+OK");

    let url = format!("redis://leasehold:secret@127.0.0.1:{}/", server.port());
    let builder = RedisStore::builder().prefix(KeyPrefix::new("shop").unwrap());
    let store = builder.connect(&url).await.unwrap();
    let mut events = store.subscribe(&Queues::all()).await.unwrap();
    store.pause(&"other".parse().unwrap()).await.unwrap();
    store.enqueue(&[job("q")]).await.unwrap();
    let leased = store.dequeue(&Dequeue::new("*", "w").unwrap()).await.unwrap();
    store.settle(&[(leased[0].receipt(), Verdict::done())]).await.unwrap();
    store.reclaim(BatchSize::MAX).await.unwrap();
    for kind in [EventKind::Enqueued, EventKind::Leased, EventKind::Settled] {
        let event = tokio::time::timeout(Duration::from_secs(30), events.next()).await.unwrap();
        assert_eq!(event.unwrap().unwrap().kind, kind);
    }
    assert!(RedisStore::connect(&url).await.is_err(), "another prefix is another's");
    let client = redis::Client::open(url).unwrap();
    let mut conn = client.get_multiplexed_async_connection().await.unwrap();
    for line in
        ["FLUSHALL", "FLUSHDB", "SCRIPT FLUSH", "MIGRATE 127.0.0.1 1 {shop:0}:q 0 10", "KEYS *", "SHUTDOWN"]
    {
        let mut words = line.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        command.arg(words.collect::<Vec<_>>());
        let refused = command.query_async::<()>(&mut conn).await.unwrap_err();
        assert_eq!(refused.code(), Some("NOPERM"), "{line}: {refused}");
    }
}

/// A row that a stranger has spoilt blocks no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_spoilt_job_is_in_nobodys_way() {
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    let ahead = Arc::new(AtomicU64::new(0));
    let builder = RedisStore::builder().clock_ahead(Arc::clone(&ahead));
    let store = builder.connect(&server.url()).await.unwrap();
    let ids: Vec<_> = store.enqueue(&[job("q"), job("q"), job("q")]).await.unwrap();
    let request = Dequeue::new("q", "w").unwrap().limit(9).unwrap();
    assert_eq!(store.dequeue(&request).await.unwrap().len(), 3);
    for (answer, field) in ids.iter().zip(["attempts", "payload"]) {
        let key = format!("{{leasehold:0}}:q:{:019}", answer.id.get());
        assert_eq!(server.command(&format!("HSET {key} {field} {{nonsense")).unwrap(), ":0");
    }
    ahead.store(3_600_000_000, Ordering::Relaxed);

    // The first is passed over, in as many calls as it takes.
    let mut reclaimed = Vec::new();
    for _ in 0..3 {
        reclaimed.extend(store.reclaim(BatchSize::ONE).await.unwrap());
    }
    let reclaimed: Vec<_> = reclaimed.iter().map(|reclaimed| reclaimed.id).collect();
    assert_eq!(reclaimed, [ids[1].id, ids[2].id]);
    let leased = store.dequeue(&request).await.unwrap();
    assert_eq!(leased.iter().map(|job| job.id).collect::<Vec<_>>(), [ids[2].id]);
    assert!(matches!(store.get(ids[0].id).await, Err(StoreError::Corrupt { .. })));
    assert_eq!(store.jobs(&JobFilter::default()).await.unwrap().items.len(), 1);
}

/// How many commands the server has run so far, those of scripts included.
fn commands(server: &Redis) -> u64 {
    let stats = server.command("INFO commandstats").unwrap();
    let calls =
        stats.lines().filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok());
    calls.sum()
}

/// A claim costs what it leases, however many priorities have jobs for later only.
#[tokio::test(flavor = "multi_thread")]
async fn twenty_thousand_priorities_that_wait_cost_a_claim_next_to_nothing() {
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    let store = connect(&server).await;
    let later = |priority| {
        let job = NewJob::builder("q", "task").priority(priority).delay(Duration::from_secs(3600));
        job.build().unwrap()
    };
    for thousand in 0..20 {
        let jobs: Vec<_> = (1..=1000).map(|number| later(1000 * thousand + number)).collect();
        store.enqueue(&jobs).await.unwrap();
    }
    for (due, limit) in [(1, 1), (1, 1000), (5, 2)] {
        store.enqueue(&(0..due).map(|_| job("q")).collect::<Vec<_>>()).await.unwrap();
        let before = commands(&server);
        let leased = store.dequeue(&Dequeue::new("q", "w").unwrap().limit(limit).unwrap()).await.unwrap();
        let cost = commands(&server) - before;
        assert_eq!(leased.len(), due.min(limit as usize));
        assert!(cost < 200, "{cost} commands for a claim of {limit} with {due} due");
    }
}

/// Whoever has moved a job's hash away for a moment finds the job as it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_hash_is_missing_for_a_while_is_not_forgotten() {
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    let store = connect(&server).await;
    let ids: Vec<_> =
        store.enqueue(&[job("q"), job("q"), job("q")]).await.unwrap().iter().map(|one| one.id).collect();
    let key = format!("{{leasehold:0}}:q:{:019}", ids[0].get());
    assert_eq!(server.command(&format!("RENAME {key} {{leasehold:0}}:away")).unwrap(), "+OK");
    for queues in ["q", "*"] {
        let queues: Queues = queues.parse().unwrap();
        let request = Dequeue { queues, ..Dequeue::new("q", "w").unwrap() };
        assert_eq!(store.dequeue(&request).await.unwrap().len(), 1);
    }
    let request = Dequeue::new("q", "w").unwrap().limit(9).unwrap();
    assert!(store.dequeue(&request).await.unwrap().is_empty());
    assert_eq!(server.command(&format!("RENAME {{leasehold:0}}:away {key}")).unwrap(), "+OK");
    let leased = store.dequeue(&request).await.unwrap();
    assert_eq!(leased.iter().map(|job| job.id).collect::<Vec<_>>(), ids[..1]);
}

/// A policy of a newer version, and one that nobody can read.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_is_not_understood_lets_nothing_through() {
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    let store = connect(&server).await;
    store.enqueue(&[job("newer"), job("broken"), job("other")]).await.unwrap();
    for (pattern, text) in [("newer", r#"{"paused":true,"something_new":1}"#), ("broken", "no-policy")] {
        let set = server.command(&format!("HSET {{leasehold:0}}:policies {pattern} '{text}'")).unwrap();
        assert_eq!(set, ":1");
    }
    // As a change of a policy has it.
    store.pause(&"unrelated".parse().unwrap()).await.unwrap();
    let leased = store.dequeue(&Dequeue::new(Queues::all(), "w").unwrap().limit(9).unwrap()).await.unwrap();
    assert_eq!(leased.iter().map(|job| job.queue.as_str()).collect::<Vec<_>>(), ["other"]);
    let error = store.policies().await.unwrap_err();
    assert!(error.to_string().contains("broken"), "{error}");
    store.resume(&"newer".parse().unwrap()).await.unwrap();
    store.set_policy(&"broken".parse().unwrap(), &leasehold_core::QueuePolicy::default()).await.unwrap();
    assert!(store.policies().await.is_ok());
    let stored = server.command("HGET {leasehold:0}:policies newer").unwrap();
    assert!(stored.contains(r#""something_new":1"#), "{stored}");
    assert_eq!(
        store.dequeue(&Dequeue::new(Queues::all(), "w").unwrap().limit(9).unwrap()).await.unwrap().len(),
        2
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_newer_version_are_left_alone() {
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    connect(&server).await;
    assert_eq!(server.command("SET {leasehold:0}:layout 2").unwrap(), "+OK");
    let error = RedisStore::connect(&server.url()).await.unwrap_err();
    assert!(matches!(error, StoreError::Conflict { .. }), "{error:?}");
    assert!(error.to_string().contains("newer version"), "{error}");
}

/// What is running can end, and nothing new begins.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_memory_is_full_still_takes_verdicts() {
    for version in [RedisVersion::Redis7, RedisVersion::Valkey] {
        let server = Redis::start(version, &[]).unwrap();
        let ahead = Arc::new(AtomicU64::new(0));
        let store =
            RedisStore::builder().clock_ahead(Arc::clone(&ahead)).connect(&server.url()).await.unwrap();
        store.enqueue(&(0..4).map(|_| job("q")).collect::<Vec<_>>()).await.unwrap();
        let leased = store.dequeue(&Dequeue::new("q", "w").unwrap().limit(4).unwrap()).await.unwrap();
        assert_eq!(server.command("CONFIG SET maxmemory 1").unwrap(), "+OK");
        let full = store.enqueue(&[job("q")]).await.unwrap_err();
        assert!(full.is_retryable(), "{full:?}");
        let verdicts = [Verdict::done_with("result").unwrap(), Verdict::dead("no"), Verdict::retry("again")];
        let items: Vec<_> = leased.iter().map(|job| job.receipt()).zip(verdicts).collect();
        let outcomes = store.settle(&items).await.unwrap();
        assert!(outcomes.iter().all(|outcome| !outcome.is_lost()), "{outcomes:?}");
        let hour = leasehold_core::LeaseFor::new(Duration::from_secs(3600)).unwrap();
        store.heartbeat(&[leased[3].receipt()], hour).await.unwrap();
        ahead.store(2 * 3_600_000_000, Ordering::Relaxed);
        assert_eq!(store.reclaim(BatchSize::MAX).await.unwrap().len(), 1);
    }
}
