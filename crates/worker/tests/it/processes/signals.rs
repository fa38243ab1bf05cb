//! Being told to end.

use std::time::Duration;

use super::child::{Note, Stuck};
use super::factory::{Factory, PATIENCE, url};

const GRACE: Duration = Duration::from_millis(1500);

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_lets_handlers_end_and_gives_back_the_others() {
    let factory = Factory::new(url()).await;
    factory.enqueue(4, |_| Stuck).await;
    factory.enqueue(4, |_| Note { takes: GRACE / 3 }).await;
    factory.enqueue(4, |_| Stuck).await;
    let mut orders = factory.orders("worker");
    orders.grace = GRACE;
    let mut worker = factory.start(&orders);
    factory.until("SELECT count(*) FROM {schema}.note", |notes| notes == 8).await;
    worker.signal("TERM");
    assert!(worker.until_ended(PATIENCE).await.success(), "{:#?}", worker.log());
    let done = "SELECT count(*) FROM {schema}.job_history WHERE kind = 'note' AND status_final = 'completed'
                AND attempts = 1";
    assert_eq!(factory.number(done).await, 4, "handlers were not waited for: {:#?}", worker.log());
    let back = "SELECT count(*) FROM {schema}.job_queue WHERE kind = 'stuck' AND lease_until IS NULL AND attempts = 0
                AND available_at <= statement_timestamp()";
    assert_eq!(factory.number(back).await, 8, "jobs were not given back: {:#?}", worker.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_sigterm_does_not_wait() {
    let factory = Factory::new(url()).await;
    factory.enqueue(8, |_| Stuck).await;
    let mut orders = factory.orders("worker");
    orders.grace = 10 * PATIENCE;
    let mut worker = factory.start(&orders);
    factory.until("SELECT count(*) FROM {schema}.note", |notes| notes == 8).await;
    worker.signal("TERM");
    worker.until_logged("told to stop").await;
    worker.signal("TERM");
    assert!(worker.until_ended(PATIENCE).await.success(), "{:#?}", worker.log());
    let back = "SELECT count(*) FROM {schema}.job_queue WHERE lease_until IS NULL AND attempts = 0";
    assert_eq!(factory.number(back).await, 8, "jobs were not given back: {:#?}", worker.log());
}
