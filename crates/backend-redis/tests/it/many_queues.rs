//! Thousands of queues: idle ones cost nothing, busy ones take turns, and names come and go.

use std::time::Duration;

use leasehold_core::{
    Archive, BatchSize, Dequeue, Job, NewJob, Prune, QueuePolicy, Queues, SettleOutcome, Store, StoreError,
    Verdict,
};
use leasehold_redis::RedisStore;
use leasehold_servers::{Redis, RedisVersion};

fn job(queue: &str) -> NewJob {
    NewJob::builder(queue, "task").build().unwrap()
}

async fn start() -> (Redis, RedisStore) {
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    (server, store)
}

async fn lease(store: &RedisStore, queues: &str, limit: u32) -> Vec<Job> {
    store.dequeue(&Dequeue::new(queues, "w").unwrap().limit(limit).unwrap()).await.unwrap()
}

async fn finish(store: &RedisStore, jobs: &[Job]) {
    let items: Vec<_> = jobs.iter().map(|job| (job.receipt(), Verdict::done())).collect();
    let outcomes = store.settle(&items).await.unwrap();
    assert!(outcomes.iter().all(|outcome| matches!(outcome, SettleOutcome::Settled(_))), "{outcomes:?}");
}

/// How many commands the server has run, those of scripts included.
fn commands(server: &Redis) -> u64 {
    let info = server.command("INFO commandstats").unwrap();
    let calls = info.lines().filter_map(|line| line.split_once("calls=")?.1.split(',').next());
    calls.map(|calls| calls.parse::<u64>().unwrap()).sum()
}

/// How many keys there are.
fn keys(server: &Redis) -> String {
    server.command("DBSIZE").unwrap()
}

async fn keep_no_history(store: &RedisStore) {
    let policy = QueuePolicy { archive: Some(Archive::DeadOnly), ..QueuePolicy::default() };
    store.set_policy(&"*".parse().unwrap(), &policy).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_queues_are_not_visited() {
    let (server, store) = start().await;
    let rooms: Vec<NewJob> = (0..10_000).map(|number| job(&format!("room:{number}"))).collect();
    for some in rooms.chunks(1000) {
        store.enqueue(some).await.unwrap();
    }
    finish(&store, &lease(&store, "room:*", 10_000).await).await;
    store.enqueue(&[job("room:7"), job("room:77")]).await.unwrap();

    let before = commands(&server);
    assert_eq!(lease(&store, "room:*", 10).await.len(), 2);
    let look = commands(&server) - before;
    store
        .next_available_at(&Queues::from("room:*".parse::<leasehold_core::QueuePattern>().unwrap()))
        .await
        .unwrap();
    store.reclaim(BatchSize::MAX).await.unwrap();
    let all = commands(&server) - before;
    assert!(look < 50 && all < 100, "a look took {look} commands, and with the others it was {all}");
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_with_nothing_left_are_forgotten() {
    let (server, store) = start().await;
    keep_no_history(&store).await;
    store.enqueue(&[job("first")]).await.unwrap();
    finish(&store, &lease(&store, "*", 1).await).await;
    let empty = keys(&server);
    for _ in 0..3 {
        let rooms: Vec<NewJob> = (0..1000).map(|number| job(&format!("room:{number}"))).collect();
        store.enqueue(&rooms).await.unwrap();
        finish(&store, &lease(&store, "room:*", 1000).await).await;
        assert_eq!(keys(&server), empty);
        assert_eq!(server.command("HLEN {leasehold:0}:names").unwrap(), ":0");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_forgotten_with_the_last_of_its_history() {
    let (server, store) = start().await;
    store.enqueue(&[job("a"), job("a"), job("b")]).await.unwrap();
    finish(&store, &lease(&store, "*", 3).await).await;
    assert_eq!(server.command("HLEN {leasehold:0}:names").unwrap(), ":2");
    let request = Prune::older_than(Duration::ZERO, BatchSize::new(2).unwrap()).unwrap();
    assert_eq!(store.prune(&request).await.unwrap(), 2);
    assert_eq!(server.command("HKEYS {leasehold:0}:numbers").unwrap(), "*1");
    assert_eq!(store.prune(&request).await.unwrap(), 1);
    assert_eq!(server.command("EXISTS {leasehold:0}:numbers {leasehold:0}:queues").unwrap(), ":0");
}

/// Whoever knows the number of a queue that is gone must not take it for the one that has it now.
#[tokio::test(flavor = "multi_thread")]
async fn numbers_are_given_again_and_nobody_is_misled() {
    let (server, store) = start().await;
    let other = RedisStore::connect(&server.url()).await.unwrap();
    keep_no_history(&store).await;
    store.enqueue(&[job("first")]).await.unwrap();
    assert_eq!(server.command("SET {leasehold:0}:next 999998").unwrap(), "+OK");
    let old = store.enqueue(&[job("old")]).await.unwrap()[0].id;
    assert_eq!(old.get() % 1_000_000, 999_999);
    let full = store.enqueue(&[job("new")]).await.unwrap_err();
    assert!(matches!(&full, StoreError::Conflict { reason } if reason.contains("999999")), "{full:?}");

    let leased = lease(&other, "old", 1).await;
    finish(&other, &leased).await;
    let new = store.enqueue(&[job("new")]).await.unwrap()[0].id;
    assert!(new > old && new.get() % 1_000_000 == 999_999, "{new}");
    let leased = lease(&store, "new", 1).await;
    finish(&other, &leased).await;
    assert!(store.get(new).await.unwrap().is_none());
    assert_eq!(store.stats(&Queues::all()).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_queue_starves_no_other() {
    let (_server, store) = start().await;
    store.enqueue(&vec![job("room:000"); 5000]).await.unwrap();
    let small: Vec<NewJob> =
        (1..100).flat_map(|number| vec![job(&format!("room:{number:03}")); 10]).collect();
    store.enqueue(&small).await.unwrap();
    let (mut left, mut looks) = (small.len(), 0);
    while left > 0 {
        looks += 1;
        assert!(looks <= 105, "after {looks} looks {left} jobs of the small queues are left");
        let leased = lease(&store, "room:*", 10).await;
        left -= leased.iter().filter(|job| job.queue.as_str() != "room:000").count();
        finish(&store, &leased).await;
    }
}
