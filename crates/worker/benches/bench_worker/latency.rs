//! How long a job waits on an idle queue: from the beginning of the call that enqueues it, in another process as far as
//! the store can tell, to the beginning of its handler. The limit is a bare loop of LISTEN and claim.
//!
//! Both take turns, job by job, so that what disturbs one disturbs the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_core::{JobKind, NewJob, Store};
use leasehold_postgres::PgStore;
use leasehold_worker::{Context, Worker, WorkerHandle};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::bare::Bare;
use crate::ground::Ground;
use crate::measure::Reading;
use crate::table::quantile;
use crate::{Bench, Result};

/// A job for each side so often.
const EVERY: Duration = Duration::from_millis(50);
/// The first ones find connections that are not open and statements that are not prepared.
const WARM: usize = 5;
/// A job that takes longer than this never came.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Serialize, Deserialize)]
struct Pickup {}

impl JobKind for Pickup {
    const KIND: &'static str = "latency";
}

pub(crate) async fn round(bench: &Bench) -> Result<Vec<Reading>> {
    let (mut ours, mut bare) = (Ours::start(bench).await?, Bare::start(bench).await?);
    let mut times = [Vec::new(), Vec::new()];
    let mut tick = tokio::time::interval(EVERY / 2);
    for pickup in 0..WARM + bench.options.sizes.pickups {
        tick.tick().await;
        let one = ours.pickup().await?;
        tick.tick().await;
        let other = bare.pickup().await?;
        if pickup >= WARM {
            times[0].push(one.as_secs_f64() * 1e3);
            times[1].push(other.as_secs_f64() * 1e3);
        }
    }
    ours.stop().await?;
    bare.stop().await?;
    let reading = |name, part| {
        let [ours, limit] = times.each_ref().map(|times| quantile(times.clone(), part));
        Reading { name, unit: "ms", ours, limit }
    };
    Ok(vec![reading("latency_p50", 0.5), reading("latency_p99", 0.99)])
}

/// A worker, and another store that enqueues.
struct Ours {
    ground: Ground,
    worker: WorkerHandle,
    producer: PgStore,
    begun: UnboundedReceiver<Instant>,
}

impl Ours {
    async fn start(bench: &Bench) -> Result<Self> {
        let ground = Ground::new(bench, 4).await?;
        let producer = PgStore::builder().schema(ground.schema.clone()).connect(&bench.server.url()).await?;
        let (sender, begun) = mpsc::unbounded_channel();
        let handler = async |_: Pickup, context: Context<UnboundedSender<Instant>>| {
            context.state().send(Instant::now()).map_err(|_| "nobody waits")
        };
        let worker = Worker::builder(Arc::new(ground.store.clone())).state(sender).queue("bench");
        let worker = worker.handle::<Pickup>(handler).start()?;
        Ok(Self { ground, worker, producer, begun })
    }

    async fn pickup(&mut self) -> Result<Duration> {
        let job = NewJob::of("bench", &Pickup {}).build()?;
        let start = Instant::now();
        self.producer.enqueue(&[job]).await?;
        waited(&mut self.begun, start).await
    }

    async fn stop(self) -> Result {
        self.worker.shutdown(PATIENCE).await?;
        self.producer.pool().close();
        self.ground.remove().await
    }
}

/// How long it took until the handler began.
pub(crate) async fn waited(begun: &mut UnboundedReceiver<Instant>, start: Instant) -> Result<Duration> {
    let begun = tokio::time::timeout(PATIENCE, begun.recv()).await?.ok_or("the worker is gone")?;
    Ok(begun - start)
}
