//! One job after another, from its being enqueued to its being settled by a worker that was woken: as many in a second as fit.

use std::time::Instant;

use futures_util::StreamExt;
use leasehold_core::{Dequeue, Queues, Store, Verdict};

use crate::ground::Ground;
use crate::load::{job, rate};
use crate::{Bench, Rates, Result};

pub(crate) async fn round(bench: &Bench) -> Result<Rates> {
    Ok(Rates { ours: ours(bench).await?, limit: limit(bench).await? })
}

async fn ours(bench: &Bench) -> Result<f64> {
    let jobs = bench.options.sizes.single;
    let ground = Ground::new(&bench.url).await?;
    let mut hints = ground.store.wakeups(&Queues::named(["bench"])?).await?;
    let (batch, request) = ([job("bench", 0)?], Dequeue::new("bench", "bench")?);
    let start = Instant::now();
    for _ in 0..jobs {
        ground.store.enqueue(&batch).await?;
        hints.next().await.ok_or("the hints have ended")?;
        let leased = ground.store.dequeue(&request).await?;
        let leased = leased.first().ok_or("a hint came, and no job")?;
        ground.store.settle(&[(leased.receipt(), Verdict::done())]).await?;
    }
    let rate = rate(jobs, start);
    ground.expect(0).await?;
    Ok(rate)
}

async fn limit(bench: &Bench) -> Result<f64> {
    let jobs = bench.options.sizes.single;
    let ground = Ground::new(&bench.url).await?;
    let mut listener = redis::Client::open(bench.url.as_str())?.get_async_pubsub().await?;
    listener.subscribe(ground.bare.channel()).await?;
    let mut messages = listener.into_on_message();
    let start = Instant::now();
    for _ in 0..jobs {
        ground.bare.enqueue(1).await?;
        messages.next().await.ok_or("the messages have ended")?;
        let leased = ground.bare.claim(1).await?;
        if leased.is_empty() {
            return Err("a message came, and no job".into());
        }
        ground.bare.settle(&leased).await?;
    }
    Ok(rate(jobs, start))
}
