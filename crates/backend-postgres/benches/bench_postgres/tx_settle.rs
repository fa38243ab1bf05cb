//! Settling in the user's transaction, together with a write of the user's own.

use std::time::{Duration, Instant};

use diesel::ExpressionMethods;
use diesel_async::{AsyncConnection, RunQueryDsl};
use leasehold_core::{Dequeue, Json, Receipt, Settled, Store, TxStore};
use leasehold_postgres::PgStore;
use tokio::task::JoinSet;

use crate::Rates;
use crate::ground::Ground;
use crate::load::rate;
use crate::pgbench::Script;
use crate::{Bench, Failure, Result};

const CONCURRENCY: usize = 50;
const CREATE: &str = include_str!("sql/create_ledger.sql");
const CLAIM: &str = include_str!("sql/claim_all.sql");
const SETTLE: &str = include_str!("sql/tx_settle.sql");

diesel::table! {
    leasehold_bench.ledger (job) {
        job -> BigInt,
        entry -> Text,
    }
}

pub(crate) async fn round(bench: &Bench) -> Result<Rates> {
    Ok(Rates { ours: ours(bench).await?, limit: limit(bench).await? })
}

async fn ours(bench: &Bench) -> Result<f64> {
    let jobs = bench.options.sizes.transactions;
    let ground = prepare(bench, CONCURRENCY).await?;
    let receipts = claim(&ground.store, jobs).await?;
    ground.settle_down().await?;
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for receipts in receipts.chunks(jobs / CONCURRENCY) {
        tasks.spawn(work(ground.store.clone(), receipts.to_vec()));
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let rate = rate(jobs, start);
    finish(ground, jobs).await?;
    Ok(rate)
}

async fn limit(bench: &Bench) -> Result<f64> {
    let jobs = bench.options.sizes.transactions;
    let ground = prepare(bench, 1).await?;
    ground.run(CLAIM).await?;
    ground.settle_down().await?;
    let runs = jobs / CONCURRENCY;
    let text = ground.sql(SETTLE).replace("{runs}", &runs.to_string());
    let rate = Script { text, clients: CONCURRENCY, runs }.rate(&bench.server)?;
    finish(ground, jobs).await?;
    Ok(rate)
}

/// Jobs, and a table for the user's own writes.
async fn prepare(bench: &Bench, connections: usize) -> Result<Ground> {
    let ground = Ground::new(&bench.server, connections).await?;
    ground.run(CREATE).await?;
    ground.fill(bench.options.sizes.transactions).await?;
    Ok(ground)
}

async fn finish(ground: Ground, jobs: usize) -> Result {
    ground.expect(0, jobs).await?;
    let written = ground.number("SELECT count(DISTINCT job) AS number FROM leasehold_bench.ledger").await?;
    if usize::try_from(written) != Ok(jobs) {
        return Err(format!("{written} jobs have written to the ledger, of {jobs}").into());
    }
    ground.run("DROP SCHEMA leasehold_bench CASCADE").await?;
    ground.remove().await
}

/// Claims them all, on a lease that no round outlives.
async fn claim(store: &PgStore, jobs: usize) -> Result<Vec<Receipt>> {
    let request = Dequeue::new("bench", "bench")?.limit(jobs as u32)?.lease_for(Duration::from_secs(600))?;
    let claimed: Vec<_> = store.dequeue(&request).await?.iter().map(|job| job.receipt()).collect();
    if claimed.len() == jobs { Ok(claimed) } else { Err("a claim brought too few jobs".into()) }
}

/// One transaction after the other.
async fn work(store: PgStore, receipts: Vec<Receipt>) -> Result {
    for receipt in receipts {
        let mut conn = store.pool().get().await?;
        let written = conn.transaction(async |conn| {
            let entry = (ledger::job.eq(receipt.job.get()), ledger::entry.eq("done"));
            diesel::insert_into(ledger::table).values(entry).execute(conn).await?;
            Ok::<_, Failure>(store.ack_in(conn, &receipt, Json::null()).await?)
        });
        let _settled: Settled = written.await?;
    }
    Ok(())
}
