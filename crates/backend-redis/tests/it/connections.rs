//! Connections that were closed, refused, or lead to a server that is a replica now.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use leasehold_core::{Dequeue, NewJob, Store};
use leasehold_redis::RedisStore;
use leasehold_servers::{Redis, RedisVersion};
use tokio::net::{TcpListener, TcpStream};

const PATIENCE: Duration = Duration::from_secs(30);
/// No server is there.
const NOBODY: u16 = 0;

fn job() -> NewJob {
    NewJob::builder("q", "task").build().unwrap()
}

/// As if it had lain idle for longer than somebody on the way allows.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_was_closed_meanwhile_costs_no_error() {
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    let store = RedisStore::builder().try_out_after(Duration::ZERO).connect(&server.url()).await.unwrap();
    for _ in 0..5 {
        server.command("CLIENT KILL TYPE normal").unwrap();
        store.enqueue(&[job()]).await.unwrap();
        server.command("CLIENT KILL TYPE normal").unwrap();
        assert_eq!(store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap().len(), 1);
    }
}

/// As a server with too many clients does: it closes each new connection. Nothing was sent, so nothing is in doubt.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lets_nobody_in_has_done_nothing() {
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    let target = Arc::new(AtomicU16::new(server.port()));
    let port = one_address(Arc::clone(&target)).await;
    let builder = RedisStore::builder().try_out_after(Duration::ZERO);
    let store = builder.connect(&format!("redis://127.0.0.1:{port}/")).await.unwrap();
    store.enqueue(&[job()]).await.unwrap();
    target.store(NOBODY, Ordering::Relaxed);
    server.command("CLIENT KILL TYPE normal").unwrap();
    for _ in 0..3 {
        let error = store.enqueue(&[job()]).await.unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
    }
    target.store(server.port(), Ordering::Relaxed);
    store.enqueue(&[job()]).await.unwrap();
}

/// Passes connections on to the server at a port which can change, as the one address of a managed service does.
async fn one_address(target: Arc<AtomicU16>) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut inward, _)) = listener.accept().await {
            let target = target.load(Ordering::Relaxed);
            tokio::spawn(async move {
                let mut outward = TcpStream::connect(("127.0.0.1", target)).await?;
                tokio::io::copy_bidirectional(&mut inward, &mut outward).await
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failover_behind_one_address_the_new_master_is_found() {
    let [old, new] = [(); 2].map(|()| Redis::start(RedisVersion::Redis7, &[]).unwrap());
    let target = Arc::new(AtomicU16::new(old.port()));
    let port = one_address(Arc::clone(&target)).await;
    let store = RedisStore::connect(&format!("redis://127.0.0.1:{port}/")).await.unwrap();
    store.enqueue(&[job()]).await.unwrap();
    new.command(&format!("REPLICAOF 127.0.0.1 {}", old.port())).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !new.command("INFO replication").unwrap().contains("master_link_status:up") {
        assert!(Instant::now() < deadline, "the replica does not follow");
        tokio::task::yield_now().await;
    }
    new.command("REPLICAOF NO ONE").unwrap();
    old.command(&format!("REPLICAOF 127.0.0.1 {}", new.port())).unwrap();
    target.store(new.port(), Ordering::Relaxed);
    // The old server keeps its connections, and says that it is read-only.
    loop {
        match store.enqueue(&[job()]).await {
            Ok(_) => break,
            Err(error) => assert!(error.is_retryable() && Instant::now() < deadline, "{error:?}"),
        }
    }
    let leased = store.dequeue(&Dequeue::new("q", "w").unwrap().limit(9).unwrap()).await.unwrap();
    assert_eq!(leased.len(), 2);
}
