//! A worker process: handles the messages of the queues of a pattern until its input ends, and prints what it did.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_scenarios::{Counted, Ground, Message, Result, Span};
use leasehold_worker::{Context, Worker};
use tokio::io::AsyncReadExt;

#[tokio::main]
async fn main() -> Result {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [backend, place, pattern, slots] = words.as_slice() else {
        return Err("usage: scenario-worker <backend> <place> <pattern> <slots>".into());
    };
    let ground = Ground::existing(backend.parse()?, place.clone());
    let (store, counts) = Counted::new(ground.open().await?);
    let output = Arc::new(Mutex::new(std::io::BufWriter::new(std::io::stdout())));
    let worker = Worker::builder(store).queue(pattern.as_str()).concurrency(slots.parse()?);
    let worker = worker.state(Arc::clone(&output)).handle::<Message>(message).start()?;
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    worker.shutdown(Duration::from_secs(30)).await;
    let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
    writeln!(output, "end {} {}", counts.total(), memory_kib()?)?;
    output.flush()?;
    Ok(())
}

async fn message(message: Message, context: Context<Arc<Mutex<impl Write + Send + 'static>>>) -> Result {
    let began = Span::now();
    tokio::task::yield_now().await;
    let queue = context.queue().to_string();
    let span = Span { queue, place: message.place, began, ended: Span::now() };
    let mut output = context.state().lock().unwrap_or_else(PoisonError::into_inner);
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
