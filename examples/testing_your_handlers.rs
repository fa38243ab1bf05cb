//! How handlers are tested: without a server, without sleeping, and with a worker that dies where it hurts.
//!
//! In your own crate these would be `#[tokio::test]` functions; here they are run one after the other.
#![allow(clippy::print_stdout, reason = "a program that shows something")]

use std::error::Error;
use std::time::Duration;

use leasehold::memory::MemoryStore;
use leasehold::prelude::*;
use leasehold::testing::{Crash, TestQueue};
use leasehold::{FinalStatus, Record};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Transfer {
    cents: i64,
}

impl JobKind for Transfer {
    const KIND: &'static str = "transfer";
}

/// The handler under test: moves money, and asks for a receipt to be mailed, all in one transaction.
async fn transfer(transfer: Transfer, context: Context<MemoryStore>) -> Result<Settled, StoreError> {
    let bank = context.state();
    let balance = bank.value("balance").and_then(|balance| balance.to::<i64>().ok()).unwrap_or_default();
    let mut tx = bank.begin();
    tx.put("balance", Json::new(&(balance + transfer.cents))?)?;
    let mail = context.continue_trace(NewJob::builder("mail", "receipt").payload(&transfer.cents)).build()?;
    bank.enqueue_in(&mut tx, &[mail]).await?;
    tokio::task::yield_now().await; // where a real one would wait for the database
    let settled = bank.ack_in(&mut tx, &context.receipt(), Json::null()).await?;
    tx.commit()?;
    Ok(settled)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    for point in [Crash::BeforeHandler, Crash::InHandler, Crash::AfterHandler] {
        money_moves_once(point).await?;
        println!("ok: the worker dies at {point:?}, and the money moves once");
    }
    an_undecodable_job_is_a_dead_letter_in_the_end().await?;
    println!("ok: an undecodable job is a dead letter in the end");
    Ok(())
}

async fn money_moves_once(point: Crash) -> Result<(), Box<dyn Error>> {
    let queue = TestQueue::new();
    let bank = queue.store().clone();
    let worker = queue.worker().state(bank.clone()).queue("bank").handle_tx::<Transfer>(transfer).test()?;
    let job = queue.enqueue("bank", &Transfer { cents: 500 }).await?;

    worker.crash(point).await?;
    queue.advance(Duration::from_secs(60)); // the lease passes
    worker.drain().await?;

    assert_eq!(bank.value("balance"), Some(Json::new(&500)?));
    let Some(Record::Finished(finished)) = bank.get(job).await? else { return Err("not finished".into()) };
    assert_eq!(finished.outcome.status(), FinalStatus::Completed);
    Ok(())
}

async fn an_undecodable_job_is_a_dead_letter_in_the_end() -> Result<(), Box<dyn Error>> {
    let queue = TestQueue::new();
    let worker =
        queue.worker().state(queue.store().clone()).queue("bank").handle_tx::<Transfer>(transfer).test()?;
    let odd = NewJob::builder("bank", "transfer").payload("all of it").max_attempts(3).build()?;
    queue.store().enqueue(&[odd]).await?;
    let ran = queue.run_to_end(&worker, Duration::from_secs(3600)).await?;
    assert_eq!(ran.len(), 3);
    assert_eq!(ran[2].status(), Some(FinalStatus::DeadLetter));
    assert_eq!(worker.stats().undecodable, 3);
    Ok(())
}
