//! What the pool hands out.

use std::process::Command;
use std::time::{Duration, Instant};

use deadpool::managed::{PoolError, TimeoutType};
use diesel_async::AsyncPgConnection;
use diesel_async::pooled_connection::deadpool::Pool;
use leasehold_core::StoreError;
use leasehold_sql::Retirement;
use leasehold_sql::pool::Checks;

use super::ask;
use super::server::Server;
use crate::connect::Connector;
use crate::connect::pool::{CHECKS, pool, pool_with};

const WAIT: Duration = Duration::from_secs(10);
const PID: &str = "pg_backend_pid()::text";

fn pool_of(server: &Server, size: usize, checks: Checks) -> Pool<AsyncPgConnection> {
    pool_with(&Connector::parse(&server.url("")).unwrap(), size, WAIT, checks, &Retirement::default())
        .unwrap()
}

/// The processes of `count` connections that lie in the pool.
async fn fill(pool: &Pool<AsyncPgConnection>, count: usize) -> Vec<String> {
    let mut held = Vec::new();
    let mut pids = Vec::new();
    for _ in 0..count {
        let mut connection = pool.get().await.unwrap();
        pids.push(ask(&mut connection, PID).await);
        held.push(connection);
    }
    pids
}

/// Ends the process and waits until it is gone.
async fn terminate(server: &Server, pid: &str) {
    let mut superuser = Connector::parse(&server.socket()).unwrap().open().await.unwrap();
    assert_eq!(ask(&mut superuser, &format!("pg_terminate_backend({pid}, 10000)::text")).await, "true");
}

fn signal(signal: &str, pid: &str) {
    assert!(Command::new("kill").args([signal, pid]).status().unwrap().success());
}

#[tokio::test]
async fn a_connection_is_used_again() {
    let server = Server::encrypted().await;
    let pool = pool(&Connector::parse(&server.url("")).unwrap(), 2, WAIT, &Retirement::default()).unwrap();
    let first = fill(&pool, 1).await;
    assert_eq!(fill(&pool, 1).await, first);
    let checked = pool_of(&server, 2, Checks { idle: Duration::ZERO, answer: WAIT, ..CHECKS });
    let first = fill(&checked, 1).await;
    assert_eq!(fill(&checked, 1).await, first, "an answered ping keeps the connection");
}

#[tokio::test]
async fn a_connection_that_died_idle_is_replaced() {
    let server = Server::encrypted().await;
    let pool = pool_of(&server, 1, Checks { idle: Duration::ZERO, answer: WAIT, ..CHECKS });
    let first = fill(&pool, 1).await;
    terminate(&server, &first[0]).await;
    assert_ne!(fill(&pool, 1).await, first);
}

#[tokio::test]
async fn a_connection_that_was_just_used_is_not_pinged() {
    let server = Server::encrypted().await;
    let pool = pool_of(&server, 1, Checks { idle: Duration::MAX, answer: Duration::ZERO, ..CHECKS });
    let first = fill(&pool, 1).await;
    signal("-STOP", &first[0]);
    let got = tokio::time::timeout(WAIT, pool.get()).await;
    signal("-CONT", &first[0]);
    assert_eq!(ask(&mut got.unwrap().unwrap(), PID).await, first[0]);
}

#[tokio::test]
async fn silent_connections_are_given_up_together() {
    let server = Server::encrypted().await;
    let answer = Duration::from_secs(2);
    let pool = pool_of(&server, 4, Checks { idle: Duration::ZERO, answer, ..CHECKS });
    let silent = fill(&pool, 4).await;
    silent.iter().for_each(|pid| signal("-STOP", pid));
    let start = Instant::now();
    let fresh = fill(&pool, 1).await;
    let taken = start.elapsed();
    silent.iter().for_each(|pid| signal("-CONT", pid));
    assert!(!silent.contains(&fresh[0]));
    assert!(taken >= answer && taken < answer * 2, "{taken:?}");
}

#[tokio::test]
async fn who_finds_no_free_connection_is_told_so() {
    let server = Server::encrypted().await;
    let connector = Connector::parse(&server.url("")).unwrap();
    let pool = pool(&connector, 1, Duration::from_millis(20), &Retirement::default()).unwrap();
    let _held = pool.get().await.unwrap();
    assert!(matches!(pool.get().await, Err(PoolError::Timeout(TimeoutType::Wait))));
}

#[test]
fn a_pool_of_nothing_is_refused() {
    let connector = Connector::parse("host=h").unwrap();
    for size in [0, usize::MAX] {
        assert!(
            matches!(pool(&connector, size, WAIT, &Retirement::default()), Err(StoreError::Invalid(invalid)) if invalid.field == "pool_size")
        );
    }
}
