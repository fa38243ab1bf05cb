//! Whether an old snapshot that somebody holds open costs anything, with several queues and priorities and with producers
//! at work.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use diesel_async::{AsyncConnection, AsyncPgConnection, SimpleAsyncConnection};
use leasehold_core::{NewJob, Store};
use leasehold_postgres::PgStore;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::Rates;
use crate::ground::Ground;
use crate::load::{BATCH, job, lane, rate, request};
use crate::{Bench, Result};

const QUEUES: [&str; 4] = ["bench:a", "bench:b", "bench:c", "bench:d"];
const PRIORITIES: usize = 3;
const PRODUCERS: usize = 2;
/// The producers wait while there are so many jobs.
const WAITING: usize = 10_000;

/// With a snapshot, and as the limit without.
pub(crate) async fn round(bench: &Bench) -> Result<Rates> {
    Ok(Rates { ours: side(bench, true).await?, limit: side(bench, false).await? })
}

async fn side(bench: &Bench, with_snapshot: bool) -> Result<f64> {
    let ground = Ground::new(&bench.server, PRODUCERS + 2).await?;
    let room = Arc::new(Semaphore::new(WAITING));
    let mut producers = JoinSet::new();
    for _ in 0..PRODUCERS {
        producers.spawn(produce(ground.store.clone(), Arc::clone(&room)));
    }
    let snapshot = if with_snapshot { Some(hold(&bench.server.url).await?) } else { None };
    let before = consume(&ground, &room, bench.options.sizes.before).await?;
    let start = Instant::now();
    let after = consume(&ground, &room, bench.options.sizes.after).await?;
    let rate = rate(after, start);
    drop(snapshot);
    room.close();
    let mut enqueued = 0;
    while let Some(count) = producers.join_next().await {
        enqueued += count??;
    }
    ground.expect(enqueued - before - after, before + after).await?;
    ground.remove().await?;
    Ok(rate)
}

/// Enqueues batches while there is room. How many jobs, once there will never be any again.
async fn produce(store: PgStore, room: Arc<Semaphore>) -> Result<usize> {
    let job = |n: usize| job(QUEUES[n % QUEUES.len()], (n % PRIORITIES) as i32);
    let jobs: Vec<NewJob> = (0..BATCH).map(job).collect::<Result<_>>()?;
    let mut sum = 0;
    while let Ok(permits) = room.acquire_many(BATCH as u32).await {
        permits.forget();
        store.enqueue(&jobs).await?;
        sum += jobs.len();
    }
    Ok(sum)
}

/// Claims from all queues, with one lane, and makes room. How many jobs.
async fn consume(ground: &Ground, room: &Semaphore, jobs: usize) -> Result<usize> {
    let request = request(&QUEUES)?;
    lane(&ground.store, &request, &AtomicUsize::new(0), jobs, |settled| room.add_permits(settled)).await
}

/// Ends with its connection.
async fn hold(url: &str) -> Result<AsyncPgConnection> {
    let mut conn = AsyncPgConnection::establish(url).await?;
    conn.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class LIMIT 1").await?;
    Ok(conn)
}
