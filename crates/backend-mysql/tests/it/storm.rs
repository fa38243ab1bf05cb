//! A short storm on both servers: nothing is lost, nothing is stuck, and the store alone never deadlocks.

#[path = "../../benches/bench_mysql/storm.rs"]
mod load;

use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_loses_nothing() {
    for variable in crate::support::BOTH {
        let fresh = crate::support::Fresh::on(variable).await;
        let told = load::storm(&fresh.url, Duration::from_secs(8), 64).await.unwrap();
        assert!(told.accepted > 0 && told.settled > 0 && told.ratio > 0.0, "{told}");
        assert_eq!(told.normal, 0, "the store's operations have deadlocked among themselves: {told}");
        fresh.drop().await;
    }
}
