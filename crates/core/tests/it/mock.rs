//! The mocks, as a user's unit test would use them.
#![cfg(feature = "mock")]

use leasehold_core::{
    Enqueued, Epoch, Fate, JobId, Json, MockStore, MockTxStore, NewJob, Receipt, Store, StoreError, TxStore,
    Verdict, backend,
};

/// Code under test: enqueues a mail, whatever store it is given.
async fn welcome(store: &dyn Store, user: &str) -> Result<JobId, StoreError> {
    let job = NewJob::builder("mail", "welcome").payload(user).unique_key(user).build()?;
    Ok(store.enqueue(&[job]).await?[0].id)
}

#[tokio::test]
async fn a_mocked_store_answers_what_it_is_told() {
    let mut store = MockStore::new();
    store
        .expect_enqueue()
        .withf(|jobs| jobs.len() == 1 && jobs[0].unique_key().is_some())
        .times(1)
        .returning(|_| Ok(vec![Enqueued { id: JobId::new(7), deduplicated: false }]));
    assert_eq!(welcome(&store, "ada").await.unwrap(), JobId::new(7));
}

#[tokio::test]
async fn thin_forms_run_on_the_mocked_methods() {
    let receipt = Receipt { job: JobId::new(7), epoch: Epoch::new(1) };
    let mut store = MockStore::new();
    store
        .expect_settle()
        .withf(|items| matches!(items, [(_, Verdict::Done(_))]))
        .times(1)
        .returning(move |items| Ok(vec![backend::settled_outcome(items[0].0, Fate::Completed)]));
    assert_eq!(store.ack(&receipt, Json::null()).await.unwrap().fate(), Fate::Completed);

    let mut transactional = MockTxStore::<String>::new();
    transactional.expect_settle_in().returning(|conn, receipt, _| {
        conn.push_str("settled");
        Ok(backend::settled(*receipt, Fate::Completed))
    });
    let mut connection = String::new();
    let settled = transactional.ack_in(&mut connection, &receipt, Json::null()).await.unwrap();
    assert_eq!((settled.receipt(), connection.as_str()), (receipt, "settled"));
}
