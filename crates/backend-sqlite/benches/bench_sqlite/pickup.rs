//! How long a job waits on an idle queue: from the beginning of the call that enqueues it to the beginning of its handler, when this process
//! enqueues it and when another one does; and what it costs an idle process to hear of the other.
//!
//! Both producers take turns, job by job, so that what disturbs one disturbs the other.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use diesel::connection::{Instrumentation, InstrumentationEvent, set_default_instrumentation};
use leasehold_core::{JobKind, NewJob, Store};
use leasehold_sqlite::{SqliteStore, Watch};
use leasehold_worker::{Context, Worker, WorkerHandle};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::ground::Ground;
use crate::{Options, Result};

/// A job for each side so often.
const EVERY: Duration = Duration::from_millis(40);
/// The first ones find statements that are not prepared.
const WARM: usize = 5;
/// A job that takes longer than this never came.
const PATIENCE: Duration = Duration::from_secs(30);
/// What this project asks of itself, in milliseconds: as a number, or as so many times the figure of one process.
const BARS: [(&str, f64, f64, f64); 2] = [("pickup_p50", 0.5, 1.5, 2.0), ("pickup_p99", 0.99, 3.0, 3.0)];
/// Of a core, for an idle process.
const IDLE_BAR: f64 = 0.2;
/// Statements per minute more than without hints from elsewhere.
const MORE_BAR: f64 = 0.5;

/// What another process of this program is to do instead of measuring.
const PRODUCE: &str = "--pickup-produce";
const IDLE: &str = "--pickup-idle";

#[derive(Serialize, Deserialize)]
struct Pickup {}

impl JobKind for Pickup {
    const KIND: &'static str = "pickup";
}

/// Does what another process of this program was started for. Whether it was.
pub(crate) async fn is_other_process(args: &[String]) -> Result<bool> {
    match args {
        [word, file] if word == PRODUCE => produce(file).await?,
        [word, file, seconds, watch] if word == IDLE => idle(file, seconds.parse()?, watch).await?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Jobs for each side in a round, and seconds of idleness.
fn sizes(options: &Options) -> (usize, u64) {
    if options.sizes.transactions < 1000 { (10, 2) } else { (200, 20) }
}

pub(crate) async fn run(options: &Options) -> Result {
    let (jobs, seconds) = sizes(options);
    let mut times = [Vec::new(), Vec::new()];
    let mut idles = [Vec::new(), Vec::new()];
    for round in 1..=options.rounds {
        let measured = pickups(jobs).await?;
        let [own, other] = measured.each_ref().map(|times| quantile(times, 0.5));
        eprintln!(
            "round {round} of {}: pickup p50 … this process {own:.2} ms, another one {other:.2} ms",
            options.rounds
        );
        for (all, one) in times.iter_mut().zip(measured) {
            all.extend(one);
        }
    }
    for watch in ["off", "files"].into_iter().cycle().take(2 * options.rounds.min(3)) {
        let idle = idle_elsewhere(seconds, watch).await?;
        eprintln!("idle, watch {watch}: {:.0} statements a minute, {:.3} % of a core", idle.0, idle.1);
        idles[usize::from(watch == "files")].push(idle);
    }
    print(&times, &idles, options.json);
    Ok(())
}

#[allow(clippy::print_stdout, reason = "a benchmark prints its results")]
fn print(times: &[Vec<f64>; 2], idles: &[Vec<(f64, f64)>; 2], json: bool) {
    let row = |name: &str, ours: f64, beside: f64, bar: f64, unit: &str| match json {
        true => println!(
            r#"{{"name":"{name}","ours":{ours:.3},"same":{beside:.3},"limit":{bar:.3},"ratio":{:.3},"unit":"{unit}"}}"#,
            bar / ours
        ),
        false => println!("{name:<16} {ours:>10.3} {beside:>10.3} {bar:>10.3} {:>7.2}  {unit}", bar / ours),
    };
    if !json {
        println!("{:<16} {:>10} {:>10} {:>10} {:>7}  unit", "", "other", "same", "at most", "ratio");
    }
    for (name, part, at_most, times_same) in BARS {
        let [own, other] = times.each_ref().map(|times| quantile(times, part));
        row(name, other, own, at_most.max(own * times_same), "ms");
    }
    let [off, files] = idles.each_ref().map(|idles| {
        let count = idles.len() as f64;
        let sum = |one: fn(&(f64, f64)) -> f64| idles.iter().map(one).sum::<f64>() / count;
        (sum(|idle| idle.0), sum(|idle| idle.1))
    });
    row("idle_statements", files.0, off.0, off.0 + MORE_BAR, "per minute (same: not watching)");
    row("idle_cpu", files.1, off.1, IDLE_BAR, "% of a core (same: not watching)");
}

fn quantile(times: &[f64], part: f64) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    let place = part * (times.len() - 1) as f64;
    let (low, high) = (times[place.floor() as usize], times[place.ceil() as usize]);
    low + (high - low) * place.fract()
}

/// Both sides' times in milliseconds: of jobs that this process enqueues, and of those of another one.
async fn pickups(count: usize) -> Result<[Vec<f64>; 2]> {
    let ground = Ground::new().await?;
    let (worker, mut begun) = worker(&ground.store, Duration::from_secs(3600))?;
    let mut other = Producer::start(&ground.file())?;
    let mut times = [Vec::new(), Vec::new()];
    let mut tick = tokio::time::interval(EVERY / 2);
    for pickup in 0..WARM + count {
        tick.tick().await;
        let start = now();
        ground.store.enqueue(&[job()?]).await?;
        let own = waited(&mut begun, start).await?;
        tick.tick().await;
        let start = other.enqueue()?;
        let foreign = waited(&mut begun, start).await?;
        if pickup >= WARM {
            times[0].push(own);
            times[1].push(foreign);
        }
    }
    worker.shutdown(PATIENCE).await?;
    Ok(times)
}

type Begun = UnboundedReceiver<Duration>;

/// A worker that tells when it begins.
fn worker(store: &SqliteStore, poll: Duration) -> Result<(WorkerHandle, Begun)> {
    let (sender, begun) = mpsc::unbounded_channel();
    let handler = async |_: Pickup, context: Context<UnboundedSender<Duration>>| {
        context.state().send(now()).map_err(|_| "nobody waits")
    };
    let worker = Worker::builder(Arc::new(store.clone())).state(sender).queue("bench").poll_interval(poll);
    Ok((worker.handle::<Pickup>(handler).start()?, begun))
}

async fn waited(begun: &mut Begun, start: Duration) -> Result<f64> {
    let begun = tokio::time::timeout(PATIENCE, begun.recv()).await?.ok_or("the worker is gone")?;
    Ok(begun.saturating_sub(start).as_secs_f64() * 1e3)
}

fn job() -> Result<NewJob> {
    Ok(NewJob::of("bench", &Pickup {}).build()?)
}

/// A clock that two processes share.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Another process that enqueues.
struct Producer {
    child: Child,
    orders: ChildStdin,
    starts: BufReader<ChildStdout>,
}

impl Producer {
    fn start(file: &str) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.args([PRODUCE, file]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = child.stdin.take().ok_or("no way to the producer")?;
        let starts = BufReader::new(child.stdout.take().ok_or("no way from the producer")?);
        Ok(Self { child, orders, starts })
    }

    /// Has a job enqueued. When that began.
    fn enqueue(&mut self) -> Result<Duration> {
        self.orders.write_all(b"one\n")?;
        let mut line = String::new();
        self.starts.read_line(&mut line)?;
        Ok(Duration::from_nanos(line.trim().parse()?))
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Enqueues a job for each line that comes in, and says when it began.
#[allow(clippy::print_stdout, reason = "the other process reads it")]
async fn produce(file: &str) -> Result {
    let store = SqliteStore::connect(file).await?;
    for line in std::io::stdin().lock().lines() {
        line?;
        let start = now();
        store.enqueue(&[job()?]).await?;
        println!("{}", start.as_nanos());
    }
    Ok(())
}

/// The statements of every connection of this process.
static STATEMENTS: AtomicU64 = AtomicU64::new(0);

struct Count;

impl Instrumentation for Count {
    fn on_connection_event(&mut self, event: InstrumentationEvent<'_>) {
        if matches!(event, InstrumentationEvent::StartQuery { .. }) {
            STATEMENTS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What an idle process costs, in statements per minute and in percent of a core.
async fn idle_elsewhere(seconds: u64, watch: &str) -> Result<(f64, f64)> {
    let ground = Ground::new().await?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args([IDLE, &ground.file(), &seconds.to_string(), watch]);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let text = String::from_utf8(output.stdout)?;
    let (statements, nanos) = text.trim().split_once(' ').ok_or("an idle process said nothing")?;
    let seconds = seconds as f64;
    Ok((statements.parse::<f64>()? / seconds * 60.0, nanos.parse::<f64>()? / 1e9 / seconds * 100.0))
}

/// A worker without jobs: the statements and the nanoseconds of so many seconds.
#[allow(clippy::print_stdout, reason = "the other process reads it")]
async fn idle(file: &str, seconds: u64, watch: &str) -> Result {
    set_default_instrumentation(|| Some(Box::new(Count)))?;
    let watch = if watch == "off" { Watch::Off } else { Watch::Files };
    let store = SqliteStore::builder().watch(watch).connect(file).await?;
    let (worker, _begun) = worker(&store, Duration::from_secs(1))?;
    // A job of its own: what follows from that is over after a second.
    store.enqueue(&[job()?]).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (statements, nanos) = (STATEMENTS.load(Ordering::Relaxed), on_a_core()?);
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let statements = STATEMENTS.load(Ordering::Relaxed) - statements;
    println!("{statements} {}", on_a_core()? - nanos);
    worker.shutdown(Duration::ZERO).await?;
    Ok(())
}

/// How long the threads of this process have been on a core, in nanoseconds.
fn on_a_core() -> Result<u64> {
    let mut sum = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let times = std::fs::read_to_string(task?.path().join("schedstat"))?;
        sum += times.split(' ').next().ok_or("no time")?.parse::<u64>()?;
    }
    Ok(sum)
}
