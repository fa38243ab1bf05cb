//! Large batches and large documents: no script does so much that others wait for long, and nothing is lost for its size.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold_core::{
    BatchSize, Dequeue, HistoryFilter, Job, JobFilter, LeaseFor, NewJob, Queues, Receipt, SettleOutcome,
    Store, Verdict,
};
use leasehold_redis::{RedisStore, RedisStoreBuilder};
use leasehold_servers::{Redis, RedisVersion};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// What one script may do on average: it changes 250 jobs, each by a few commands.
const COMMANDS_PER_SCRIPT: u64 = 3500;

/// What the server has run: scripts, and commands, those of scripts included; and what that took.
struct Work {
    scripts: u64,
    commands: u64,
    /// Seconds of the processor.
    busy: f64,
}

impl Work {
    fn of(server: &Redis) -> Self {
        let info = server.command("INFO commandstats").unwrap();
        let calls = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok();
        let commands = info.lines().filter_map(calls).sum();
        let scripts = info.lines().find(|line| line.starts_with("cmdstat_evalsha:")).and_then(calls);
        let info = server.command("INFO cpu").unwrap();
        let seconds = |line: &str| {
            let main =
                line.starts_with("used_cpu_user_main_thread") || line.starts_with("used_cpu_sys_main_thread");
            line.split_once(':').filter(|_| main)?.1.trim().parse::<f64>().ok()
        };
        let busy = info.lines().filter_map(seconds).sum();
        Self { scripts: scripts.unwrap_or_default(), commands, busy }
    }
}

/// The machine may be busy: what is counted here is what the server does.
fn patient() -> RedisStoreBuilder {
    RedisStore::builder().response_timeout(Duration::from_secs(120))
}

/// A server that notes how long each script takes, and a store on it.
async fn start() -> (Redis, RedisStore) {
    let settings = [("slowlog-log-slower-than", "1000"), ("slowlog-max-len", "10000")];
    let server = Redis::start(RedisVersion::Redis7, &settings).unwrap();
    let store = patient().connect(&server.url()).await.unwrap();
    (server, store)
}

/// Does it, and prints what that was for the server: how many commands there were in a script, and how long the longest took.
macro_rules! measured {
    ($server:expr, $name:expr, $call:expr) => {{
        $server.command("SLOWLOG RESET").unwrap();
        let before = Work::of(&$server);
        let answer = $call.await.unwrap();
        let after = Work::of(&$server);
        let (scripts, commands) = (after.scripts - before.scripts, after.commands - before.commands);
        let longest = longest(&$server).await;
        #[allow(clippy::print_stdout, reason = "how long it takes is for a person to judge")]
        {
            let each = (after.busy - before.busy) / scripts.max(1) as f64 * 1000.0;
            println!("{}: {scripts} scripts, {commands} commands; {each:.1} ms of the processor each, {longest:?} at most", $name);
        }
        (answer, commands / scripts.max(1))
    }};
}

/// How long the longest command took since the log was emptied.
async fn longest(server: &Redis) -> Duration {
    let mut conn =
        redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let mut command = redis::cmd("SLOWLOG");
    let entries: Vec<Vec<redis::Value>> = command.arg("GET").arg(-1).query_async(&mut conn).await.unwrap();
    let micros = entries.into_iter().map(|entry| redis::from_redis_value::<u64>(entry[2].clone()).unwrap());
    Duration::from_micros(micros.max().unwrap_or_default())
}

fn settled(outcomes: &[SettleOutcome]) -> usize {
    outcomes.iter().filter(|outcome| matches!(outcome, SettleOutcome::Settled(_))).count()
}

fn done(jobs: &[Job]) -> Vec<(Receipt, Verdict)> {
    jobs.iter().map(|job| (job.receipt(), Verdict::done())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_jobs_are_leased_extended_and_settled_in_parts() {
    let (server, store) = start().await;
    let job = |queue: usize| NewJob::builder(format!("room:{queue}"), "task").build().unwrap();
    for (name, queues, pattern) in [("one queue", 1, "room:*"), ("10,000 queues", 10_000, "named")] {
        let jobs: Vec<NewJob> = (0..10_000).map(|number| job(number % queues)).collect();
        let (accepted, cost) = measured!(server, format!("{name}: enqueue"), store.enqueue(&jobs));
        assert!(cost < 5 * 10_000, "{cost} commands for a batch that is accepted whole");
        let queues = match pattern {
            "named" => Queues::named((0..queues).map(|queue| format!("room:{queue}"))).unwrap(),
            pattern => pattern.parse().unwrap(),
        };
        let request = Dequeue { queues, ..Dequeue::new("q", "w").unwrap().limit(10_000).unwrap() };
        let (leased, cost) = measured!(server, format!("{name}: dequeue"), store.dequeue(&request));
        assert_eq!(leased.len(), 10_000);
        assert!(cost < COMMANDS_PER_SCRIPT, "{cost} commands in a script that leases");
        let ids: BTreeSet<_> = leased.iter().map(|job| job.id).collect();
        assert!(accepted.iter().all(|one| ids.contains(&one.id)));
        let receipts: Vec<Receipt> = leased.iter().map(Job::receipt).collect();
        let hour = LeaseFor::new(Duration::from_secs(3600)).unwrap();
        let (held, cost) = measured!(server, format!("{name}: heartbeat"), store.heartbeat(&receipts, hour));
        assert!(held.len() == 10_000 && cost < COMMANDS_PER_SCRIPT, "{cost} commands in a heartbeat");
        let (outcomes, cost) = measured!(server, format!("{name}: settle"), store.settle(&done(&leased)));
        assert_eq!(settled(&outcomes), 10_000);
        assert!(cost < COMMANDS_PER_SCRIPT, "{cost} commands in a script that settles");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_passed_leases_are_reclaimed_in_parts() {
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    let ahead = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let builder = patient().clock_ahead(std::sync::Arc::clone(&ahead));
    let store = builder.connect(&server.url()).await.unwrap();
    store.enqueue(&vec![NewJob::builder("q", "task").build().unwrap(); 10_000]).await.unwrap();
    let request = Dequeue::new("q", "w").unwrap().limit(10_000).unwrap();
    assert_eq!(store.dequeue(&request).await.unwrap().len(), 10_000);
    ahead.store(3_600_000_000, std::sync::atomic::Ordering::Relaxed);
    let stuck = store.stuck(Duration::from_secs(1), BatchSize::new(7).unwrap()).await.unwrap();
    assert_eq!(stuck.len(), 7);
    let (reclaimed, cost) = measured!(server, "reclaim", store.reclaim(BatchSize::MAX));
    assert_eq!(reclaimed.len(), 10_000);
    assert!(cost < COMMANDS_PER_SCRIPT, "{cost} commands in a script that reclaims");
}

/// A payload of so many bytes.
fn large(queue: &str, bytes: usize) -> NewJob {
    NewJob::builder(queue, "task").payload(&"x".repeat(bytes - 2)).build().unwrap()
}

/// Far more than is sent to the server, or comes from it, at once.
#[tokio::test(flavor = "multi_thread")]
async fn large_documents_go_in_parts_and_a_batch_is_still_accepted_whole() {
    let (server, store) = start().await;
    let count = if std::env::var_os("LEASEHOLD_TEST_LONG").is_some() { 1000 } else { 40 };
    let key = |number| NewJob::builder("room:1", "task").unique_key(format!("{number}"));
    let first = store.enqueue(&[key(7).build().unwrap()]).await.unwrap()[0].id;
    let mut jobs: Vec<NewJob> =
        (0..count).map(|number| large(&format!("room:{}", number % 5), 1 << 20)).collect();
    // One that is there already, and one twice.
    for number in [7, 8, 8] {
        jobs.push(key(number).payload(&"x".repeat(1 << 19)).build().unwrap());
    }
    let (accepted, _) = measured!(server, format!("enqueue {count} MiB"), store.enqueue(&jobs));
    let told: Vec<bool> = accepted.iter().map(|one| one.deduplicated).collect();
    assert_eq!(told, (0..count + 3).map(|number| number == count || number == count + 2).collect::<Vec<_>>());
    assert_eq!((accepted[count].id, accepted[count + 2].id), (first, accepted[count + 1].id));
    assert_eq!(server.command("EVAL \"return #redis.call('keys','*ahead*')\" 0").unwrap(), ":0");

    let mut all = Vec::new();
    for queues in ["room:1", "room:*"] {
        let request = Dequeue {
            queues: queues.parse().unwrap(),
            ..Dequeue::new("q", "w").unwrap().limit(1000).unwrap()
        };
        let (leased, _) = measured!(server, format!("dequeue {queues}"), store.dequeue(&request));
        all.extend(leased);
    }
    assert_eq!(all.len(), count + 2);
    let payload = |job: &Job| job.payload.clone();
    for (new, accepted) in jobs.iter().zip(&accepted).filter(|(_, accepted)| !accepted.deduplicated) {
        let job = all.iter().find(|job| job.id == accepted.id).unwrap();
        assert!(payload(job) == *new.payload(), "{} has another payload", job.id);
        assert_eq!(
            server.command(&format!("TTL {{leasehold:0}}:{}:{:019}", job.queue, job.id.get())).unwrap(),
            ":-1"
        );
    }
    let result = Verdict::done_with(&"y".repeat((1 << 20) - 2)).unwrap();
    let items: Vec<_> = all.iter().map(|job| (job.receipt(), result.clone())).collect();
    let (outcomes, _) = measured!(server, format!("settle {count} MiB"), store.settle(&items));
    assert_eq!(settled(&outcomes), count + 2);
    let filter = HistoryFilter { limit: BatchSize::MAX, ..HistoryFilter::default() };
    assert_eq!(store.history(&filter).await.unwrap().items.len(), count + 2);
}

/// Turns are kept, and the order of priorities, where a claim takes several scripts.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_in_parts_keeps_its_order() {
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    for shards in [1, 4] {
        let prefix = leasehold_redis::KeyPrefix::new(format!("of{shards}")).unwrap();
        let builder = patient().prefix(prefix).shards(shards).unwrap();
        let store = builder.connect(&server.url()).await.unwrap();
        let mut jobs = Vec::new();
        for number in 0..60 {
            let queue = format!("room:{}", number % 7);
            let payload = "x".repeat(1 << 18);
            jobs.push(NewJob::builder(queue, "task").priority(number % 4).payload(&payload).build().unwrap());
        }
        store.enqueue(&jobs).await.unwrap();
        let names = (0..7).map(|number| format!("room:{number}"));
        let request = |queues| Dequeue { queues, ..Dequeue::new("q", "w").unwrap().limit(30).unwrap() };
        let named = store.dequeue(&request(Queues::named(names).unwrap())).await.unwrap();
        assert_eq!(named.len(), 30);
        assert!(named.is_sorted_by_key(|job| (-job.priority, job.available_at, job.id)), "{shards} shards");
        let turns = store.dequeue(&request("room:*".parse().unwrap())).await.unwrap();
        assert_eq!(turns.len(), 30);
        let mut counts = std::collections::HashMap::<_, usize>::new();
        let mut left = std::collections::HashMap::<_, usize>::new();
        turns.iter().for_each(|job| *left.entry(job.queue.clone()).or_default() += 1);
        for job in &turns {
            let round = *counts.entry(job.queue.clone()).and_modify(|count| *count += 1).or_insert(1);
            let behind = left.iter().find(|(queue, has)| {
                **has > counts.get(*queue).copied().unwrap_or_default()
                    && counts.get(*queue).copied().unwrap_or_default() + 1 < round
            });
            assert!(behind.is_none(), "{} has its turn {round} before {behind:?} had its own", job.queue);
        }
        assert!(store.jobs(&JobFilter::default()).await.unwrap().items.len() == 60);
    }
}

/// Hundred queues with a backlog: as much is read as is leased, or little more.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_from_many_named_queues_reads_what_it_leases() {
    let (server, store) = start().await;
    let names: Vec<String> = (0..100).map(|number| format!("q{number}")).collect();
    for name in &names {
        let job = |number| NewJob::builder(name.as_str(), "task").priority(number % 3).build().unwrap();
        store.enqueue(&(0..200).map(job).collect::<Vec<_>>()).await.unwrap();
    }
    let request = Dequeue {
        queues: Queues::named(names).unwrap(),
        ..Dequeue::new("q", "w").unwrap().limit(1000).unwrap()
    };
    let watched = watch(&server).await;
    let (leased, cost) = measured!(server, "100 named queues", store.dequeue(&request));
    assert_eq!(leased.len(), 1000);
    assert!(leased.iter().all(|job| job.priority == 2));
    let asked_for = watched.await.unwrap();
    assert!(cost < COMMANDS_PER_SCRIPT, "{cost} commands in a script");
    assert!((1000..5000).contains(&asked_for), "{asked_for} members of sets were asked for");
}

/// How many members of sets are asked for from now on until the counts of commands are asked for the second time.
async fn watch(server: &Redis) -> JoinHandle<usize> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
    stream.write_all(b"MONITOR\r\n").await.unwrap();
    let mut lines = BufReader::new(stream).lines();
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "+OK");
    tokio::spawn(async move {
        let (mut sum, mut counts) = (0, 0);
        while counts < 2 {
            let line = lines.next_line().await.unwrap().unwrap();
            counts += usize::from(line.contains("\"commandstats\""));
            if let Some((_, count)) =
                line.split_once("\"LIMIT\" \"0\" \"").filter(|_| line.contains("\"ZRANGEBYLEX\""))
            {
                sum += count.trim_end_matches('"').parse::<usize>().unwrap();
            }
        }
        sum
    })
}
