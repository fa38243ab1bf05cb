//! Connections that were closed, refused, or lead to a server that is a replica now.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use leasehold_core::{Dequeue, JobState, NewJob, Store, StoreError, Verdict};
use leasehold_redis::RedisStore;
use leasehold_servers::{Redis, RedisCluster, RedisVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::cluster::PATIENT_NODES;

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

/// How many times a server that is paused is asked in vain.
const IN_VAIN: usize = 3;

/// What was sent to a server that was paused is carried out afterwards, and nobody waits for it any more.
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_waits_for_any_more_is_not_done() {
    for version in [RedisVersion::Redis7, RedisVersion::Valkey] {
        let server = Redis::start(version, &[]).unwrap();
        let builder = RedisStore::builder().response_timeout(Duration::from_millis(400));
        let builder = builder.try_out_after(Duration::from_secs(3600));
        let store = builder.connect(&server.url()).await.unwrap();
        store.enqueue(&vec![job(); 20]).await.unwrap();
        let request = Dequeue::new("q", "w").unwrap().limit(5).unwrap();
        let leased = store.dequeue(&request).await.unwrap();
        assert_eq!(leased.len(), 5);
        let others = [(); IN_VAIN].map(|()| store.clone());
        server.command("CLIENT PAUSE 2500 ALL").unwrap();
        let claims = others.iter().map(|store| store.dequeue(&request));
        let claims = futures_util::future::join_all(claims);
        let jobs = [NewJob::builder("q", "task").unique_key("key").build().unwrap()];
        let (claims, enqueued) = futures_util::future::join(claims, store.enqueue(&jobs)).await;
        for error in claims.into_iter().map(|claim| claim.unwrap_err()).chain([enqueued.unwrap_err()]) {
            assert!(error.is_unknown() || error.is_retryable(), "{error:?}");
        }
        // It is answered when the pause is over, and what was sent before has been done.
        assert_eq!(server.command("PING").unwrap(), "+PONG");
        let deadline = Instant::now() + PATIENCE;
        let stats = loop {
            match store.stats(&"q".parse().unwrap()).await {
                Ok(stats) => break stats,
                Err(error) => assert!(error.is_retryable() && Instant::now() < deadline, "{error:?}"),
            }
        };
        let counts = [JobState::Running, JobState::Ready].map(|state| stats[0].count(state));
        assert_eq!(counts, [5, 15], "leased to nobody, or enqueued late");
        assert_eq!(store.dequeue(&request).await.unwrap().len(), 5);
    }
}

/// The user's password was changed. The server may be told the old one again.
#[tokio::test(flavor = "multi_thread")]
async fn another_password_is_no_lasting_error() {
    let server = Redis::start(RedisVersion::Redis7, &[]).unwrap();
    assert_eq!(server.command("ACL SETUSER worker on >old ~* &* +@all").unwrap(), "+OK");
    let url = format!("redis://worker:old@127.0.0.1:{}/", server.port());
    let store = RedisStore::builder().try_out_after(Duration::ZERO).connect(&url).await.unwrap();
    store.enqueue(&[job()]).await.unwrap();
    server.command("ACL SETUSER worker resetpass >new").unwrap();
    server.command("CLIENT KILL USER worker").unwrap();
    for _ in 0..3 {
        let error = store.enqueue(&[job()]).await.unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
    }
    let error = store.enqueue(&[job()]).await.unwrap_err();
    let said = std::error::Error::source(&error).unwrap().to_string();
    assert!(said.contains("does not accept the user and password"), "{said}");
    let refused = RedisStore::connect(&url).await.unwrap_err();
    assert!(refused.is_retryable(), "{refused:?}");
    server.command("ACL SETUSER worker >old").unwrap();
    store.enqueue(&[job()]).await.unwrap();
    // A right that is missing does not come by itself.
    server.command("ACL SETUSER worker -evalsha -eval").unwrap();
    let error = store.enqueue(&[job()]).await.unwrap_err();
    assert!(!error.is_retryable() && !error.is_unknown(), "{error:?}");
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("lacks a right"));
}

/// Sentinels are not asked where the master is.
#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_is_known_for_what_it_is() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut bytes).await {
                    let asked = String::from_utf8_lossy(&bytes[..count]).into_owned();
                    let commands = asked.matches('*').count();
                    let info = "# Server\r\nredis_mode:sentinel\r\n";
                    let answer = match asked.contains("\r\nINFO\r\n") {
                        true => format!("${}\r\n{info}\r\n", info.len()),
                        false => "+OK\r\n".repeat(commands),
                    };
                    stream.write_all(answer.as_bytes()).await?;
                }
                std::io::Result::Ok(())
            });
        }
    });
    let error = RedisStore::connect(&format!("{url},{url}")).await.unwrap_err();
    assert!(matches!(error, StoreError::Conflict { .. }), "{error:?}");
    assert!(error.to_string().contains("Sentinel"), "{error}");
}

/// As if its connections had lain idle for longer than somebody on the way allows.
#[tokio::test(flavor = "multi_thread")]
async fn connections_of_a_cluster_that_were_closed_meanwhile_cost_no_error() {
    let cluster = RedisCluster::start(RedisVersion::Redis7, 0, &PATIENT_NODES).unwrap();
    let builder = RedisStore::builder().try_out_after(Duration::ZERO);
    let store = builder.connect(&cluster.url()).await.unwrap();
    let close = || {
        for node in cluster.masters() {
            node.command("CLIENT KILL TYPE normal").unwrap();
        }
    };
    let queues = (0..20).map(|number| NewJob::builder(format!("room:{number}"), "task").build().unwrap());
    let jobs: Vec<NewJob> = queues.collect();
    for round in 0..5 {
        close();
        store.enqueue(&jobs[round..=round]).await.unwrap();
        close();
        let leased = store.dequeue(&Dequeue::new("room:*", "w").unwrap().limit(9).unwrap()).await.unwrap();
        assert_eq!(leased.len(), 1);
        close();
        let items: Vec<_> = leased.iter().map(|job| (job.receipt(), Verdict::done())).collect();
        store.settle(&items).await.unwrap();
        close();
        store.enqueue(&jobs).await.unwrap();
        close();
        let leased = store.dequeue(&Dequeue::new("room:*", "w").unwrap().limit(99).unwrap()).await.unwrap();
        assert_eq!(leased.len(), 20);
        close();
        let items: Vec<_> = leased.iter().map(|job| (job.receipt(), Verdict::done())).collect();
        store.settle(&items).await.unwrap();
    }
}
