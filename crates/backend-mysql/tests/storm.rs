//! A short storm on both servers: nothing is lost, nothing is stuck, and the store alone never deadlocks.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod support;

#[path = "../examples/bench_mysql/storm.rs"]
mod storm;

use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_loses_nothing() {
    for variable in support::BOTH {
        let fresh = support::Fresh::on(variable).await;
        let told = storm::storm(&fresh.url, Duration::from_secs(8), 64).await.unwrap();
        assert!(told.accepted > 0 && told.settled > 0 && told.ratio > 0.0, "{told}");
        assert_eq!(told.normal, 0, "the store's operations have deadlocked among themselves: {told}");
        fresh.drop().await;
    }
}
