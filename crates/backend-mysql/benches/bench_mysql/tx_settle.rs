//! Settling in the user's transaction, together with a write of the user's own.

use std::time::{Duration, Instant};

use diesel::ExpressionMethods;
use diesel_async::{AsyncConnection, AsyncMysqlConnection, RunQueryDsl};
use leasehold_core::{Dequeue, Json, Receipt, Settled, Store, TxStore};
use leasehold_mysql::{MysqlStore, TxError};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use crate::ground::Ground;
use crate::load::rate;
use crate::{Bench, Rates, Result, bare};

const WRITE: &str = "INSERT INTO ledger (job, entry) VALUES (?, 'done')";
const TASKS: usize = 8;

diesel::table! {
    ledger (job) {
        job -> BigInt,
        entry -> Text,
    }
}

pub(crate) async fn round(bench: &Bench) -> Result<Rates> {
    Ok(Rates { ours: ours(bench).await?, limit: limit(bench).await? })
}

async fn ours(bench: &Bench) -> Result<f64> {
    let jobs = bench.options.sizes.transactions;
    let ground = Ground::new(&bench.url, TASKS).await?;
    ground.fill(jobs).await?;
    let receipts = claim(&ground.store, jobs).await?;
    let mut conns = Vec::new();
    for _ in 0..TASKS {
        conns.push(ground.store.pool().get().await?);
    }
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for (mut conn, receipts) in conns.into_iter().zip(receipts.chunks(jobs.div_ceil(TASKS))) {
        let (store, receipts) = (ground.store.clone(), receipts.to_vec());
        tasks.spawn(async move {
            for receipt in receipts {
                settle(&store, &mut conn, receipt).await?;
            }
            Result::Ok(())
        });
    }
    finish(ground, tasks, jobs, start).await
}

async fn settle(store: &MysqlStore, conn: &mut AsyncMysqlConnection, receipt: Receipt) -> Result {
    let settled = conn.transaction(async |conn| {
        let entry = (ledger::job.eq(receipt.job.get()), ledger::entry.eq("done"));
        diesel::insert_into(ledger::table).values(entry).execute(conn).await?;
        Ok::<_, TxError>(store.ack_in(conn, &receipt, Json::null()).await?)
    });
    let _settled: Settled = settled.await?;
    Ok(())
}

async fn limit(bench: &Bench) -> Result<f64> {
    let jobs = bench.options.sizes.transactions;
    let ground = Ground::new(&bench.url, 1).await?;
    ground.fill(jobs).await?;
    let ids = bare::claim(&mut ground.connection().await?, jobs).await?;
    let clients = bare::clients(&ground.url, TASKS).await?;
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for (client, ids) in clients.into_iter().zip(ids.chunks(jobs.div_ceil(TASKS))) {
        tasks.spawn(settle_bare(client, ids.to_vec()));
    }
    finish(ground, tasks, jobs, start).await
}

async fn settle_bare(mut conn: Conn, ids: Vec<i64>) -> Result {
    for id in ids {
        conn.query_drop("START TRANSACTION").await?;
        conn.exec_drop(WRITE, (id,)).await?;
        bare::settle(&mut conn, &[id]).await?;
        conn.query_drop("COMMIT").await?;
    }
    Ok(())
}

async fn finish(
    ground: Ground,
    mut tasks: tokio::task::JoinSet<Result>,
    jobs: usize,
    start: Instant,
) -> Result<f64> {
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let rate = rate(jobs, start);
    ground.expect(0, jobs).await?;
    ground.expect_rows("SELECT COUNT(DISTINCT job) FROM ledger", jobs).await?;
    ground.remove().await?;
    Ok(rate)
}

/// Claims them all, on a lease that no round outlives.
async fn claim(store: &MysqlStore, jobs: usize) -> Result<Vec<Receipt>> {
    let request = Dequeue::new("bench", "bench")?.limit(jobs as u32)?.lease_for(Duration::from_secs(600))?;
    let claimed: Vec<_> = store.dequeue(&request).await?.iter().map(|job| job.receipt()).collect();
    if claimed.len() == jobs { Ok(claimed) } else { Err("a claim brought too few jobs".into()) }
}
