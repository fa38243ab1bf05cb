//! What operators look at costs what it shows, not what there is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::{BatchSize, Dequeue, Direction, JobFilter, JobId, NewJob, Queues, Store};
use leasehold_redis::{KeyPrefix, RedisStore};
use leasehold_servers::{Redis, RedisVersion};

const QUEUES: usize = 5000;

fn job(queue: &str) -> NewJob {
    NewJob::builder(queue, "task").build().unwrap()
}

fn number(server: &Redis, section: &str, name: &str) -> u64 {
    let info = server.command(&format!("INFO {section}")).unwrap();
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    value
        .split(|other: char| !other.is_ascii_digit())
        .find(|digits| !digits.is_empty())
        .unwrap()
        .parse()
        .unwrap()
}

/// Commands that the server has run, those of scripts included.
fn commands(server: &Redis) -> u64 {
    let info = server.command("INFO commandstats").unwrap();
    let calls = info.lines().filter_map(|line| line.split_once("calls=")?.1.split(',').next());
    calls.map(|calls| calls.parse::<u64>().unwrap()).sum()
}

/// The server looks at each queue once, and tells of no more than the page.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_jobs_of_many_queues_tells_no_more_than_a_page() {
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let rooms: Vec<NewJob> = (0..QUEUES).map(|number| job(&format!("room:{number}"))).collect();
    store.enqueue(&rooms).await.unwrap();
    let filter = JobFilter {
        queues: "room:*".parse().unwrap(),
        limit: BatchSize::new(20).unwrap(),
        ..JobFilter::default()
    };
    let (told, ran) = (number(&server, "stats", "total_net_output_bytes"), commands(&server));
    assert_eq!(store.jobs(&filter).await.unwrap().items.len(), 20);
    let told = number(&server, "stats", "total_net_output_bytes") - told;
    let ran = commands(&server) - ran;
    assert!(ran < QUEUES as u64 + 200 && told < 50_000, "{ran} commands, {told} bytes");
}

/// All pages together are all jobs, in order, each once.
#[tokio::test(flavor = "multi_thread")]
async fn pages_over_many_queues_and_shards_have_each_job_once() {
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    for shards in [1, 3] {
        let builder = RedisStore::builder().prefix(KeyPrefix::new(format!("of{shards}")).unwrap());
        let store = builder.shards(shards).unwrap().connect(&server.url()).await.unwrap();
        let names: Vec<String> = (0..2100).map(|number| format!("room:{number}")).collect();
        let jobs: Vec<NewJob> =
            names.iter().map(|name| job(name)).chain((0..300).map(|_| job("room:7"))).collect();
        let mut all: Vec<JobId> = store.enqueue(&jobs).await.unwrap().iter().map(|one| one.id).collect();
        store.enqueue(&[job("other")]).await.unwrap();
        for direction in [Direction::OldestFirst, Direction::NewestFirst] {
            for queues in
                ["room:*".parse().unwrap(), Queues::named(names.iter().map(String::as_str)).unwrap()]
            {
                let limit = BatchSize::new(700).unwrap();
                let mut filter = JobFilter { queues, direction, limit, ..JobFilter::default() };
                let mut found = Vec::new();
                loop {
                    let page = store.jobs(&filter).await.unwrap();
                    found.extend(page.items.iter().map(|job| job.id));
                    match page.next {
                        Some(next) => filter.after = Some(next),
                        None => break,
                    }
                }
                assert!(found == all, "{direction:?} over {shards} shards: {} of {}", found.len(), all.len());
            }
            all.reverse();
        }
    }
}

/// The queues of other prefixes are not gone through.
#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_is_to_come_is_known_without_looking_at_other_queues() {
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    let store = RedisStore::connect(&server.url()).await.unwrap();
    let hour = Duration::from_secs(3600);
    let later = |queue: String| NewJob::builder(queue, "task").delay(hour).build().unwrap();
    store
        .enqueue(&(0..QUEUES).map(|number| later(format!("other:{number}"))).collect::<Vec<_>>())
        .await
        .unwrap();
    let last = NewJob::builder("room:1", "task").delay(2 * hour).build().unwrap();
    for (jobs, expected) in [(&[][..], false), (&[last], true)] {
        store.enqueue(jobs).await.unwrap();
        let before = commands(&server);
        let next = store.next_available_at(&"room:*".parse().unwrap()).await.unwrap();
        let cost = commands(&server) - before;
        assert_eq!(next.is_some_and(|next| next.wait > hour), expected, "{next:?}");
        assert!(cost < 50, "{cost} commands");
    }
}

/// Jobs that are not leased are not read.
#[tokio::test(flavor = "multi_thread")]
async fn stuck_jobs_are_found_without_reading_the_others() {
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    let ahead = Arc::new(AtomicU64::new(0));
    let builder = RedisStore::builder().shards(3).unwrap().clock_ahead(Arc::clone(&ahead));
    let store = builder.connect(&server.url()).await.unwrap();
    store
        .enqueue(&(0..QUEUES).map(|number| job(&format!("room:{}", number % 50))).collect::<Vec<_>>())
        .await
        .unwrap();
    let mut leased: Vec<JobId> = Vec::new();
    for limit in [7, 3] {
        let request = Dequeue::new("room:*", "w")
            .unwrap()
            .limit(limit)
            .unwrap()
            .lease_for(Duration::from_secs(60))
            .unwrap();
        leased.extend(store.dequeue(&request).await.unwrap().iter().map(|job| job.id));
        ahead.fetch_add(50_000_000, Ordering::Relaxed);
    }
    leased.truncate(7);
    leased.sort_unstable();
    let before = commands(&server);
    let stuck = store.stuck(Duration::from_secs(30), BatchSize::MAX).await.unwrap();
    let cost = commands(&server) - before;
    assert_eq!(stuck.iter().map(|job| job.id).collect::<Vec<_>>(), leased);
    assert!(cost < 100, "{cost} commands");
    assert_eq!(store.stuck(Duration::ZERO, BatchSize::new(2).unwrap()).await.unwrap().len(), 2);
    assert!(store.stuck(Duration::from_secs(3600), BatchSize::MAX).await.unwrap().is_empty());
}
