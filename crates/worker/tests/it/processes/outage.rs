//! The server goes away, and comes back.

use std::time::Duration;

use leasehold_servers::{Postgres, PostgresVersion};

use super::child::{Note, Orders, Pay};
use super::factory::{Factory, PATIENCE};

const DOWN: &str = "the store does not answer";
const UP: &str = "the store answers again";

#[tokio::test(flavor = "multi_thread")]
async fn work_resumes_after_an_outage_and_each_change_is_one_line_of_the_log() {
    let server = Postgres::start(PostgresVersion::V15, &[]).unwrap();
    let factory = Factory::new(server.url()).await;
    factory.enqueue(100, |_| Note { takes: Duration::from_millis(20) }).await;
    factory.enqueue(100, |_| Pay).await;
    // With a short lease a busy machine answers some heartbeats too late, which is an outage of its own.
    let orders = Orders { lease: Duration::from_secs(5), ..factory.orders("worker") };
    let mut worker = factory.start(&orders);
    factory.until("SELECT count(*) FROM {schema}.job_history", |done| done > 10).await;
    server.stop().unwrap();
    worker.until_logged(&format!("{DOWN}; trying again work=\"claim\"")).await;
    server.restart().unwrap();
    factory.enqueue(50, |_| Pay).await;
    factory.until_nothing_is_left().await;
    worker.until_logged(&format!("{UP} work=\"claim\"")).await;
    worker.signal("TERM");
    assert!(worker.until_ended(PATIENCE).await.success(), "{:#?}", worker.log());
    factory.check(250).await;
    assert!(worker.logged("has no connection").len() <= 1, "{:#?}", worker.log());
    for work in ["claim", "settle", "receipts", "heartbeat", "wakeups"] {
        // While the server stops, a connection that is open may still be answered when a new one is refused.
        let is_change = |line: &&String| {
            line.contains(&format!("work=\"{work}\"")) && (line.contains(DOWN) || line.contains(UP))
        };
        let log = worker.log();
        let changes: Vec<&String> = log.iter().filter(is_change).collect();
        let is_in_turn =
            |(place, line): (usize, &&String)| line.contains(if place % 2 == 0 { DOWN } else { UP });
        assert!(changes.iter().enumerate().all(is_in_turn), "{work}: {changes:#?}");
        assert!(changes.len() <= 6, "{work}: {changes:#?}");
    }
}
