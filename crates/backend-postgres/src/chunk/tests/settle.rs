//! Applying verdicts in chunks.

use diesel_async::{AnsiTransactionManager, AsyncConnection, AsyncPgConnection, TransactionManager};
use leasehold_core::{
    Json, NewJob, Receipt, ReceiptStatus, SettleOutcome, Store, StoreError, TxStore, Verdict,
};

use super::{World, document, job};
use crate::PgStore;

/// As many leased jobs, all of the first attempt.
async fn leased(world: &World, count: usize) -> Vec<Receipt> {
    let jobs: Vec<NewJob> = (0..count).map(|_| job("k", None)).collect();
    world.whole.enqueue(&jobs).await.unwrap();
    let mut receipts = world.lease("q").await;
    receipts.sort_unstable();
    receipts
}

fn result(number: usize) -> Verdict {
    Verdict::Done(document(&number.to_string(), 998))
}

fn shape(outcomes: &[SettleOutcome]) -> Vec<&'static str> {
    let name = |outcome: &SettleOutcome| match outcome {
        SettleOutcome::Settled(_) => "settled",
        SettleOutcome::LeaseLost => "lost",
        SettleOutcome::Pending => "pending",
        other => panic!("{other:?}"),
    };
    outcomes.iter().map(name).collect()
}

/// S2, S11, S14: receipts that repeat, that are stale, and whose job another transaction has locked. Not in the order of the ids.
async fn mixed(world: &World, store: &PgStore, verdict: impl Fn(usize) -> Verdict) -> Vec<&'static str> {
    let receipts = leased(world, 6).await;
    let stale = leased(world, 1).await[0];
    world.whole.settle(&[(stale, Verdict::done())]).await.unwrap();
    let mut beside = AsyncPgConnection::establish(&super::url()).await.unwrap();
    AnsiTransactionManager::begin_transaction(&mut beside).await.unwrap();
    world.whole.lock_in(&mut beside, receipts[3]).await.unwrap();
    let order = [5, 3, 0, 5, 1, 4, 3, 0, 2];
    let receipts = order.iter().map(|place| receipts[*place]).chain([stale]);
    let items: Vec<_> = receipts.enumerate().map(|(place, receipt)| (receipt, verdict(place))).collect();
    let outcomes = store.settle(&items).await.unwrap();
    AnsiTransactionManager::rollback_transaction(&mut beside).await.unwrap();
    shape(&outcomes)
}

const MIXED: [&str; 10] =
    ["settled", "pending", "settled", "lost", "settled", "settled", "pending", "lost", "settled", "lost"];

#[tokio::test(flavor = "multi_thread")]
async fn outcomes_are_those_of_one_statement() {
    let world = World::new().await;
    assert_eq!(mixed(&world, &world.whole, result).await, MIXED);
    assert_eq!(mixed(&world, &world.small, result).await, MIXED);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn outcomes_of_all_verdicts_are_those_of_one_statement() {
    let verdict = |place: usize| match place % 3 {
        0 => Verdict::Dead { error: document("dead", 998) },
        1 => Verdict::Discard { reason: document("discarded", 998) },
        _ => Verdict::retry(document("again", 998)),
    };
    let world = World::new().await;
    assert_eq!(mixed(&world, &world.whole, verdict).await, MIXED);
    assert_eq!(mixed(&world, &world.small, verdict).await, MIXED);
    world.end().await;
}

/// Each job has its own result, though the chunks go by the order of the ids.
#[tokio::test(flavor = "multi_thread")]
async fn each_result_is_that_of_its_job() {
    let mut world = World::new().await;
    let mut receipts = leased(&world, 5).await;
    receipts.reverse();
    let items: Vec<_> =
        receipts.iter().enumerate().map(|(place, receipt)| (*receipt, result(place))).collect();
    assert_eq!(shape(&world.small.settle(&items).await.unwrap()), ["settled"; 5]);
    let transactions = "SELECT count(DISTINCT xmin::text) FROM {schema}.job_history";
    assert_eq!(world.number(transactions).await, 1, "one transaction");
    let commands = "SELECT count(DISTINCT finished_at) FROM {schema}.job_history";
    assert_eq!(world.number(commands).await, 3, "three statements");
    for (place, receipt) in receipts.iter().enumerate() {
        let asked = format!(
            "SELECT count(*) FROM {{schema}}.job_history WHERE id = {} AND result #>> '{{}}' LIKE '{place}-%'",
            receipt.job
        );
        assert_eq!(world.number(&asked).await, 1);
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_in_the_second_chunk_undoes_the_first() {
    let mut world = World::new().await;
    let receipts = leased(&world, 5).await;
    let is_bad = format!("NEW.id = {}", receipts[3].job);
    world.at_insert("job_history", "BEFORE", &is_bad, "RAISE EXCEPTION 'bad'").await;
    let items: Vec<_> =
        receipts.iter().enumerate().map(|(place, receipt)| (*receipt, result(place))).collect();
    let error = world.small.settle(&items).await.unwrap_err();
    assert!(matches!(error, StoreError::Backend { .. }), "{error:?}");
    let statuses = world.small.receipts(&receipts).await.unwrap();
    assert!(statuses.iter().all(|status| matches!(status, ReceiptStatus::Held { .. })), "{statuses:?}");
    world.end().await;
}

/// One result for all is sent once, so it is no large batch.
#[tokio::test(flavor = "multi_thread")]
async fn one_result_for_all_is_one_statement() {
    let mut world = World::new().await;
    let receipts = leased(&world, 5).await;
    let same: Vec<(Receipt, Verdict)> =
        receipts.iter().map(|receipt| (*receipt, Verdict::Done(Json::null()))).collect();
    assert_eq!(shape(&world.small.settle(&same).await.unwrap()), ["settled"; 5]);
    let receipts = leased(&world, 5).await;
    let same: Vec<_> = receipts.iter().map(|receipt| (*receipt, result(0))).collect();
    assert_eq!(shape(&world.small.settle(&same).await.unwrap()), ["settled"; 5]);
    let commands = "SELECT count(DISTINCT finished_at) FROM {schema}.job_history";
    assert_eq!(world.number(commands).await, 2);
    world.end().await;
}
