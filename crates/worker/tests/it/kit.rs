//! The test kit does what it says.
#![cfg(feature = "testing")]

use std::time::Duration;

use leasehold_core::{
    FinalStatus, JobKind, Json, NewJob, Record, Settled, Store, StoreError, TxStore, Verdict,
};
use leasehold_memory::MemoryStore;
use leasehold_worker::Context;
use leasehold_worker::testing::{Crash, TestQueue};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Pay {
    cents: u64,
}

impl JobKind for Pay {
    const KIND: &'static str = "pay";
}

/// Pays in a transaction, and counts how often in a ledger that anybody may write twice.
async fn pay(pay: Pay, context: Context<MemoryStore>) -> Result<Settled, StoreError> {
    let store = context.state();
    let paid = store.value("paid").map_or(0, |paid| paid.to::<u64>().unwrap_or_default());
    let mut tx = store.begin();
    tx.put("paid", Json::new(&(paid + pay.cents))?)?;
    tokio::task::yield_now().await;
    let settled = store.ack_in(&mut tx, &context.receipt(), Json::null()).await?;
    tx.commit()?;
    Ok(settled)
}

#[tokio::test]
async fn a_transactional_handler_pays_once_wherever_its_worker_dies() {
    for point in [Crash::BeforeHandler, Crash::InHandler, Crash::AfterHandler] {
        let queue = TestQueue::new();
        let worker =
            queue.worker().state(queue.store().clone()).queue("bank").handle_tx::<Pay>(pay).test().unwrap();
        let id = queue.enqueue("bank", &Pay { cents: 5 }).await.unwrap();
        assert_eq!(worker.crash(point).await.unwrap().unwrap().id, id);
        let paid = queue.store().value("paid").is_some();
        assert_eq!(paid, point == Crash::AfterHandler, "{point:?}");
        assert!(worker.run_one().await.unwrap().is_none(), "{point:?}: the lease still holds");
        queue.advance(Duration::from_secs(60));
        worker.drain().await.unwrap();
        assert_eq!(queue.store().value("paid"), Some(Json::new(&5).unwrap()), "{point:?}");
        let Some(Record::Finished(job)) = queue.store().get(id).await.unwrap() else { panic!("{point:?}") };
        assert_eq!(job.outcome.status(), FinalStatus::Completed, "{point:?}");
    }
}

#[tokio::test]
async fn time_moves_on_to_what_is_due() {
    let queue = TestQueue::new();
    let fail = async |_: Pay, context: Context<()>| match context.attempt() {
        3 => Ok(()),
        attempt => Err(format!("attempt {attempt}")),
    };
    let worker = queue.worker().queue("bank").handle::<Pay>(fail).test().unwrap();
    let later = NewJob::of("bank", &Pay { cents: 1 }).delay(Duration::from_secs(3600)).build().unwrap();
    queue.store().enqueue(&[later]).await.unwrap();
    let start = queue.now();
    assert!(queue.run_to_end(&worker, Duration::from_secs(3599)).await.unwrap().is_empty());
    let ran = queue.run_to_end(&worker, Duration::from_secs(7200)).await.unwrap();
    let attempts: Vec<u32> = ran.iter().map(|ran| ran.job.attempts).collect();
    assert_eq!(attempts, [1, 2, 3]);
    assert_eq!(ran.last().unwrap().status(), Some(FinalStatus::Completed));
    assert!(queue.now() - start > chrono::Duration::hours(1));
    assert_eq!((worker.stats().retried, worker.stats().completed), (2, 1));
    assert_eq!(format!("{worker:?}"), format!("TestWorker {{ stats: {:?}, .. }}", worker.stats()));
}

#[tokio::test]
async fn an_assertion_says_what_there_is_instead() {
    let queue = TestQueue::new();
    queue.enqueue("bank", &Pay { cents: 5 }).await.unwrap();
    queue.assert_enqueued::<Pay>("bank", |pay| pay.cents == 5).await;
    let wrong = tokio::spawn({
        let queue = queue.clone();
        async move { queue.assert_enqueued::<Pay>("bank", |pay| pay.cents == 6).await }
    });
    let panic = wrong.await.unwrap_err().into_panic();
    let said = panic.downcast_ref::<String>().unwrap();
    assert!(said.contains("kit.rs") && said.contains(r#"only ["{\"cents\":5}"]"#), "{said}");
}

#[tokio::test]
async fn only_the_jobs_of_the_queue_and_the_kind_are_listed() {
    let queue = TestQueue::new();
    let mine = queue.enqueue("bank", &Pay { cents: 1 }).await.unwrap();
    queue.enqueue("shop", &Pay { cents: 2 }).await.unwrap();
    let other = NewJob::builder("bank", "other").payload(&Pay { cents: 3 }).build().unwrap();
    let unreadable = NewJob::builder("bank", Pay::KIND).payload("no").build().unwrap();
    queue.store().enqueue(&[other, unreadable]).await.unwrap();
    let jobs = queue.enqueued::<Pay>("bank").await.unwrap();
    let listed: Vec<_> = jobs.iter().map(|(job, pay)| (job.id, pay.cents)).collect();
    assert_eq!(listed, [(mine, 1)]);
    // Also those of a second page of the store's.
    for _ in 0..150 {
        queue.enqueue("bank", &Pay { cents: 1 }).await.unwrap();
    }
    assert_eq!(queue.enqueued::<Pay>("bank").await.unwrap().len(), 151);
}

/// Each turn takes a part of the horizon.
#[tokio::test]
async fn time_moves_on_no_further_than_the_horizon() {
    let queue = TestQueue::new();
    let again = async |_: Pay, _: Context<()>| Verdict::snooze(Duration::from_secs(600));
    let worker = queue.worker().queue("bank").handle::<Pay>(again).test().unwrap();
    queue.enqueue("bank", &Pay { cents: 1 }).await.unwrap();
    let start = queue.now();
    let ran = queue.run_to_end(&worker, Duration::from_secs(1500)).await.unwrap();
    assert_eq!((ran.len(), queue.now() - start), (3, chrono::Duration::seconds(1200)));
}
