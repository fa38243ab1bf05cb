use crate::{Bench, Result, ground::Ground, pickup::ticks};
use mysql_async::prelude::Queryable;
use std::time::{Duration, Instant};

fn show(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |p: usize| times[times.len() * p / 100].as_secs_f64() * 1000.0;
    println!("{name}: p50 {:.2} p99 {:.2} ms", at(50), at(99));
}
const INSERT: &str = "INSERT INTO job_queue (queue_name, kind, priority, payload, headers, max_attempts, available_at, created_at, updated_at) VALUES ('b','b',0,'null','{}',1,UTC_TIMESTAMP(6),UTC_TIMESTAMP(6),UTC_TIMESTAMP(6))";
const LOOP: &str = "WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n+1 FROM s WHERE n < ?) SELECT s.n FROM s WHERE SLEEP(?) = 0 AND EXISTS (SELECT 1 FROM job_queue j FORCE INDEX (PRIMARY) WHERE j.id > ? + 0 * s.n) LIMIT 1";
pub(crate) async fn scratch(bench: &Bench) -> Result {
    let ground = Ground::new(&bench.url, 2).await?;
    let mut p = ground.connection().await?;
    // CPU
    let base = ticks(bench.server.as_ref())?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let idle = (ticks(bench.server.as_ref())? - base) / 5.0;
    println!("idle server {:.2} %", idle * 100.0);
    for period in [2u64, 4, 8] {
        let mut c = ground.connection().await?;
        let (t, start) = (ticks(bench.server.as_ref())?, Instant::now());
        let mut polls = 0;
        while start.elapsed() < Duration::from_secs(6) {
            tokio::time::sleep(Duration::from_millis(period)).await;
            let _: Option<u64> = c
                .exec_first(
                    "SELECT id FROM job_queue FORCE INDEX (PRIMARY) WHERE id > ? ORDER BY id LIMIT 1000",
                    (0,),
                )
                .await?;
            polls += 1;
        }
        println!(
            "poll {period} ms: {:.2} % of a core, {polls} polls in 6 s",
            ((ticks(bench.server.as_ref())? - t) / start.elapsed().as_secs_f64() - idle) * 100.0
        );
    }
    for (n, s) in [(250, 0.004), (20, 0.05)] {
        let mut c = ground.connection().await?;
        c.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED").await?;
        let (t, start) = (ticks(bench.server.as_ref())?, Instant::now());
        for _ in 0..6 {
            let _: Option<u64> = c.exec_first(LOOP, (n, s, 0)).await?;
        }
        println!(
            "loop in the server {s} s: {:.2} % of a core in {:?}",
            ((ticks(bench.server.as_ref())? - t) / start.elapsed().as_secs_f64() - idle) * 100.0,
            start.elapsed()
        );
    }
    // latencies
    let (send, mut recv) = tokio::sync::mpsc::unbounded_channel();
    let mut c = ground.connection().await?;
    c.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED").await?;
    let s2 = send.clone();
    let task = tokio::spawn(async move {
        let mut seen = 0u64;
        loop {
            let hit: Option<u64> = c.exec_first(LOOP, (250, 0.004, seen)).await.unwrap_or_default();
            if hit.is_some() {
                s2.send(Instant::now()).ok();
                seen = c
                    .query_first("SELECT MAX(id) FROM job_queue")
                    .await
                    .unwrap_or_default()
                    .unwrap_or_default();
            }
        }
    });
    let mut times = Vec::new();
    for _ in 0..150 {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(5..60))).await;
        p.query_drop(INSERT).await?;
        let at = Instant::now();
        times.push(recv.recv().await.ok_or("gone")?.saturating_duration_since(at));
    }
    task.abort();
    show("loop in the server, 4 ms", times);
    // named locks: the producer holds, releases, takes the next
    let mut c = ground.connection().await?;
    p.query_drop("DO GET_LOCK('bell0', 10)").await?;
    let s2 = send.clone();
    let task = tokio::spawn(async move {
        let mut n = 0;
        loop {
            let r: Option<i64> =
                c.query_first(format!("SELECT GET_LOCK('bell{n}', 10)")).await.unwrap_or_default();
            if r == Some(1) {
                s2.send(Instant::now()).ok();
                c.query_drop(format!("DO RELEASE_LOCK('bell{n}')")).await.ok();
                n += 1;
            }
        }
    });
    let mut times = Vec::new();
    for n in 0..150 {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(5..60))).await;
        p.query_drop(INSERT).await?;
        let at = Instant::now();
        p.query_drop(format!("DO GET_LOCK('bell{}', 10), RELEASE_LOCK('bell{n}')", n + 1)).await?;
        times.push(recv.recv().await.ok_or("gone")?.saturating_duration_since(at));
    }
    task.abort();
    show("named lock of one producer", times);
    let mut c = ground.connection().await?;
    let id = c.id();
    let task = tokio::spawn(async move {
        loop {
            drop(c.query_drop("DO SLEEP(10)").await);
            send.send(Instant::now()).ok();
        }
    });
    let mut times = Vec::new();
    for _ in 0..150 {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(5..60))).await;
        p.query_drop(INSERT).await?;
        let at = Instant::now();
        p.query_drop(format!("KILL QUERY {id}")).await?;
        times.push(recv.recv().await.ok_or("gone")?.saturating_duration_since(at));
    }
    task.abort();
    show("sleep and kill query", times);
    ground.remove().await
}
