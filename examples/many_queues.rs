//! Many small queues, strict order in each, all of them at once: fourteen games with five messages each, and then a
//! thousand queues for ten slots.
#![allow(clippy::print_stdout, reason = "a program that shows something")]

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use leasehold::prelude::*;
use leasehold::{QueueOrder, QueuePolicy};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Message {
    number: u32,
}

impl JobKind for Message {
    const KIND: &'static str = "message";
}

/// What has arrived, game by game, and how many messages were under way at once.
#[derive(Default)]
struct Arrived {
    games: Mutex<BTreeMap<String, Vec<u32>>>,
    under_way: Mutex<(u32, u32)>,
}

async fn deliver(message: Message, context: Context<std::sync::Arc<Arrived>>) {
    let arrived = context.state();
    let count = |by: i32| {
        let mut under_way = arrived.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.0 = under_way.0.saturating_add_signed(by);
        under_way.1 = under_way.1.max(under_way.0);
    };
    count(1);
    // The later a message, the quicker: without order, they would overtake each other.
    tokio::time::sleep(Duration::from_millis(u64::from(6 - message.number.min(5)))).await;
    count(-1);
    let mut games = arrived.games.lock().unwrap_or_else(PoisonError::into_inner);
    games.entry(context.queue().to_string()).or_default().push(message.number);
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("Fourteen games, five messages each, twenty slots");
    for (game, numbers) in play(14, 5, 20).await?.iter().take(3) {
        println!("   {game}: {numbers:?}");
    }
    println!("   … and so on: each in order, all at once");
    println!("\nA thousand queues, three messages each, ten slots");
    play(1000, 3, 10).await?;
    Ok(())
}

/// Sends `messages` to each of `queues` games, works on them with `slots` slots, and checks the order.
async fn play(
    queues: u32,
    messages: u32,
    slots: usize,
) -> Result<BTreeMap<String, Vec<u32>>, Box<dyn Error>> {
    let store = leasehold::connect("memory:").await?;
    // Strict order: the next message of a game is leased when the one before it has ended.
    let in_order = QueuePolicy { order: Some(QueueOrder::Fifo), ..QueuePolicy::default() };
    store.set_policy(&"game:*".try_into()?, &in_order).await?;
    let mut jobs = Vec::new();
    for number in 1..=messages {
        for game in 1..=queues {
            jobs.push(NewJob::of(format!("game:{game:04}"), &Message { number }).build()?);
        }
    }
    store.enqueue(&jobs).await?;

    let arrived = std::sync::Arc::new(Arrived::default());
    let start = Instant::now();
    let worker = Worker::builder(store)
        .state(arrived.clone())
        .queue("game:*") // whatever games there are, now and later: one question to the store
        .concurrency(slots)
        .handle::<Message>(deliver)
        .start()?;
    let mut events = worker.events();
    let mut left = jobs.len();
    while left > 0 {
        match events.recv().await {
            Ok(WorkerEvent::Settled { .. }) => left -= 1,
            Ok(_) => {}
            // Some events were missed: the numbers tell the same.
            Err(_) => left = jobs.len() - usize::try_from(worker.stats().completed)?,
        }
    }
    let took = start.elapsed();
    worker.shutdown(Duration::from_secs(1)).await?;

    let games = arrived.games.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let expected: Vec<u32> = (1..=messages).collect();
    if let Some((game, numbers)) = games.iter().find(|(_, numbers)| **numbers != expected) {
        return Err(format!("{game} got its messages out of order: {numbers:?}").into());
    }
    let most = arrived.under_way.lock().unwrap_or_else(PoisonError::into_inner).1;
    println!("   {} messages in {took:.0?}, up to {most} at once, every game in order", jobs.len());
    Ok(games)
}
