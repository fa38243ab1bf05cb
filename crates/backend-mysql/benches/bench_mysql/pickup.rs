//! How soon a job is picked up that another process has enqueued, and what it costs to wait for one.
//!
//! The rates are those of a drain: ours is with idle workers beside it, the limit without.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use leasehold_core::{Json, NewJob, Queues, Store};
use leasehold_mysql::MysqlStore;
use leasehold_servers::Mysql;
use mysql_async::prelude::Queryable;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::drain::drain;
use crate::ground::Ground;
use crate::load::request;
use crate::{Bench, Rates, Result};

/// So many workers wait for jobs beside what is measured.
const WORKERS: usize = 20;
/// The first pickups are not counted.
const WARM: usize = 10;
/// Longer than a store is awake after its last job.
const REST: Duration = Duration::from_secs(13);
const PATIENCE: Duration = Duration::from_secs(10);

/// How many jobs are picked up, and for how long idle workers are watched.
struct Sizes {
    pickups: usize,
    idle: Duration,
}

pub(crate) async fn round(bench: &Bench) -> Result<Rates> {
    let sizes = match bench.options.sizes.drain {
        ..100_000 => Sizes { pickups: 40, idle: Duration::from_secs(5) },
        _ => Sizes { pickups: 400, idle: Duration::from_secs(60) },
    };
    let pickups = pickups(bench, sizes.pickups).await?;
    let (ours, idle) = beside(bench, WORKERS, sizes.idle).await?;
    let (limit, bare) = beside(bench, 0, sizes.idle / 4).await?;
    let [p50, p99] = [50, 99].map(|percent| pickups[pickups.len() * percent / 100].as_secs_f64() * 1000.0);
    let statements = (idle.statements - bare.statements).max(0.0) / WORKERS as f64;
    let cpu = (idle.cpu - bare.cpu).max(0.0) * 100.0;
    if bench.options.json {
        println!(
            r#"{{"name":"pickup","p50_ms":{p50:.2},"p99_ms":{p99:.2},"idle_statements_per_s":{statements:.2},"idle_cpu_percent":{cpu:.2}}}"#
        );
    } else {
        println!(
            "pickup: p50 {p50:.2} ms, p99 {p99:.2} ms; an idle worker sends {statements:.2} statements/s, {WORKERS} of them use {cpu:.2} % of a core of the server"
        );
    }
    Ok(Rates { ours, limit })
}

/// From the end of the producer's call to the lease, sorted.
async fn pickups(bench: &Bench, count: usize) -> Result<Vec<Duration>> {
    let ground = Ground::new(&bench.url, 4).await?;
    let producer = MysqlStore::connect(&ground.url).await?;
    let (sender, mut leased) = unbounded_channel();
    let worker = tokio::spawn(pick_up(ground.store.clone(), sender));
    let mut pickups = Vec::with_capacity(count);
    for number in 0..WARM + count {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(5..100))).await;
        producer.enqueue(&[NewJob::builder("bench", "bench").build()?]).await?;
        let enqueued = Instant::now();
        let leased = tokio::time::timeout(PATIENCE, leased.recv()).await?.ok_or("the worker is gone")?;
        if number >= WARM {
            pickups.push(leased.saturating_duration_since(enqueued));
        }
    }
    worker.abort();
    ground.remove().await?;
    pickups.sort_unstable();
    Ok(pickups)
}

/// Leases jobs as soon as it is told of them.
async fn pick_up(store: MysqlStore, leased: UnboundedSender<Instant>) -> Result {
    let mut hints = store.wakeups(&Queues::named(["bench"])?).await?;
    let request = request(&["bench"])?;
    loop {
        let jobs = store.dequeue(&request).await?;
        for job in &jobs {
            leased.send(Instant::now())?;
            let _fate = store.ack(&job.receipt(), Json::null()).await?.fate();
        }
        if jobs.is_empty() {
            hints.next().await;
        }
    }
}

/// What the server does in a second.
struct Load {
    statements: f64,
    /// Of a core.
    cpu: f64,
}

/// At which rate jobs are drained beside so many workers of other queues, and what the server does while these are idle.
async fn beside(bench: &Bench, workers: usize, idle: Duration) -> Result<(f64, Load)> {
    let jobs = bench.options.sizes.drain;
    let ground = Ground::new(&bench.url, 2 * bench.options.lanes).await?;
    let mut waiting = Vec::with_capacity(workers);
    for number in 0..workers {
        let store = MysqlStore::connect(&ground.url).await?;
        let queues = Queues::named((0..10).map(|queue| format!("idle{number}_{queue}")))?;
        waiting.push((store.wakeups(&queues).await?, store));
    }
    tokio::time::sleep(REST).await;
    let load = load(bench, &ground, idle).await?;
    ground.fill(jobs).await?;
    let (rate, _) = drain(&ground, bench.options.lanes, jobs).await?;
    ground.expect(0, jobs).await?;
    drop(waiting);
    ground.remove().await?;
    Ok((rate, load))
}

async fn load(bench: &Bench, ground: &Ground, time: Duration) -> Result<Load> {
    let mut conn = ground.connection().await?;
    let (start, before, used) = (Instant::now(), questions(&mut conn).await?, ticks(bench.server.as_ref())?);
    tokio::time::sleep(time).await;
    let statements = (questions(&mut conn).await? - before) as f64 / start.elapsed().as_secs_f64();
    let cpu = (ticks(bench.server.as_ref())? - used) / start.elapsed().as_secs_f64();
    Ok(Load { statements, cpu })
}

async fn questions(conn: &mut mysql_async::Conn) -> Result<u64> {
    let row: Option<(String, u64)> = conn.query_first("SHOW GLOBAL STATUS LIKE 'Questions'").await?;
    Ok(row.ok_or("the server does not count statements")?.1)
}

/// How many seconds of a core the server has used. Nothing is known of one that is not ours.
fn ticks(server: Option<&Mysql>) -> Result<f64> {
    let Some(pid) = server.and_then(Mysql::pid) else { return Ok(0.0) };
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name of the program may have blanks.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Ok(ticks as f64 / 100.0)
}
