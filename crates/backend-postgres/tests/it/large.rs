//! Batches that the server would not take in one message: 1 GiB is too much for it. That much only with `LEASEHOLD_TEST_LONG`; otherwise a
//! batch that is just too large for one statement.

use leasehold_core::{
    BatchSize, Dequeue, Json, LeaseFor, NewJob, Problem, Receipt, SettleOutcome, Store, StoreError, Verdict,
    limits,
};
use leasehold_postgres::PgStore;

const MIB: usize = 1 << 20;

/// How many, with `LEASEHOLD_TEST_LONG` and otherwise.
fn count(long: usize, short: usize) -> usize {
    if std::env::var_os("LEASEHOLD_TEST_LONG").is_some() { long } else { short }
}

/// A document of so many bytes. Its beginning tells it from others.
fn document(number: usize, bytes: usize) -> Json {
    let number = number.to_string();
    Json::new(&(number.clone() + &"-".repeat(bytes - 2 - number.len()))).unwrap()
}

async fn store(payload_limit: usize) -> PgStore {
    let builder =
        PgStore::builder().schema(crate::support::fresh_schema()).payload_limit(payload_limit).unwrap();
    let store = builder.connect(&crate::support::url("LEASEHOLD_TEST_POSTGRES_URL")).await.unwrap();
    store.migrate().await.unwrap();
    store
}

async fn lease(store: &PgStore, count: usize) -> Vec<Receipt> {
    let limit = BatchSize::new(u32::try_from(count).unwrap()).unwrap();
    let lease_for = LeaseFor::new(std::time::Duration::from_secs(600)).unwrap();
    let request = Dequeue { limit, lease_for, ..Dequeue::new("q", "w").unwrap() };
    store.dequeue(&request).await.unwrap().iter().map(|job| job.receipt()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_large_jobs() {
    let count = count(1100, 70);
    let store = store(MIB).await;
    let of = |number| NewJob::builder("q", "k").payload(&document(number, MIB)).build().unwrap();
    let jobs: Vec<NewJob> = (0..count).map(of).collect();
    let answers = store.enqueue(&jobs).await.unwrap();
    assert_eq!(answers.len(), count);
    assert!(answers.is_sorted_by(|one, other| one.id < other.id));
    assert_eq!(lease(&store, 1).await[0].job, answers[0].id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_large_results() {
    let (count, bytes) = (count(20, 2), count(60, 33) * MIB);
    let store = store(64 * MIB).await;
    let jobs: Vec<NewJob> = (0..count).map(|_| NewJob::builder("q", "k").build().unwrap()).collect();
    store.enqueue(&jobs).await.unwrap();
    let receipts = lease(&store, count).await;
    let result = |number| Verdict::Done(document(number, bytes));
    let items: Vec<_> =
        receipts.into_iter().enumerate().map(|(number, receipt)| (receipt, result(number))).collect();
    let outcomes = store.settle(&items).await.unwrap();
    assert!(outcomes.iter().all(|outcome| matches!(outcome, SettleOutcome::Settled(_))), "{outcomes:?}");
}

/// The largest document of all, as a payload and as a result; one beyond it is refused before anything is sent.
#[tokio::test(flavor = "multi_thread")]
async fn the_largest_document() {
    let bytes = count(limits::JSON_BYTES, MIB);
    let store = store(bytes).await;
    let job = NewJob::builder("q", "k").payload(&document(0, bytes)).build().unwrap();
    store.enqueue(&[job.clone(), job]).await.unwrap();
    let receipts = lease(&store, 2).await;
    let items: Vec<_> =
        receipts.iter().map(|receipt| (*receipt, Verdict::Done(document(1, bytes)))).collect();
    assert!(matches!(
        store.settle(&items).await.unwrap()[..],
        [SettleOutcome::Settled(_), SettleOutcome::Settled(_)]
    ));

    let store = self::store(MIB).await;
    let job = NewJob::builder("q", "k").payload(&document(0, MIB + 1)).build().unwrap();
    let error = store.enqueue(&[job]).await.unwrap_err();
    let StoreError::Invalid(invalid) = &error else { panic!("{error:?}") };
    assert_eq!(
        (invalid.field, &invalid.problem),
        ("payload", &Problem::TooLong { bytes: MIB + 1, limit: MIB })
    );
}
