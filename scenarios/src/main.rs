//! A worker process: handles the messages of the queues of a pattern until its input ends, and prints what it did.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_scenarios::{Counted, Gate, Ground, Message, Result, Span};
use leasehold_worker::{Context, Worker};
use tokio::io::AsyncReadExt;

// One thread: handlers that pass the gate together have all ended when the worker looks again.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [backend, place, pattern, slots] = words.as_slice() else {
        return Err("usage: scenario-worker <backend> <place> <pattern> <slots>".into());
    };
    let ground = Ground::existing(backend.parse()?, place.clone());
    let (store, counts) = Counted::new(ground.open().await?);
    let slots: usize = slots.parse()?;
    let output = Arc::new(Mutex::new(std::io::BufWriter::new(std::io::stdout())));
    let state = Arc::new(State { gate: Gate::new(slots), output: Arc::clone(&output) });
    let worker = Worker::builder(store).queue(pattern.as_str()).concurrency(slots).state(state);
    let worker = worker.handle::<Message>(message).start()?;
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    worker.shutdown(Duration::from_secs(30)).await?;
    let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
    writeln!(output, "end {} {}", counts.total(), memory_kib()?)?;
    output.flush()?;
    Ok(())
}

type Output = Mutex<std::io::BufWriter<std::io::Stdout>>;

struct State {
    gate: Gate,
    output: Arc<Output>,
}

async fn message(message: Message, context: Context<Arc<State>>) -> Result {
    let began = Span::now();
    context.state().gate.pass().await;
    let queue = context.queue().to_string();
    let span = Span { queue, place: message.place, began, ended: Span::now() };
    let mut output = context.state().output.lock().unwrap_or_else(PoisonError::into_inner);
    writeln!(output, "{}", span.line())?;
    output.flush()?;
    Ok(())
}

/// The most memory that this process has used.
fn memory_kib() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(peak.trim().trim_end_matches(" kB").parse()?)
}
