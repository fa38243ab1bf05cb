//! Settling in the user's transaction, together with a write of the user's own.

use std::time::{Duration, Instant};

use diesel::sql_types::BigInt;
use diesel::{RunQueryDsl, SqliteConnection, sql_query};
use leasehold_core::{Dequeue, Json, Receipt, Settled, Store, TxStore};
use leasehold_sqlite::{SqliteStore, transaction};

use crate::Options;
use crate::Rates;
use crate::bare::{self, Cached};
use crate::ground::Ground;
use crate::load::rate;
use crate::{Failure, Result};

const WRITE: &str = include_str!("sql/write.sql");

pub(crate) async fn round(options: &Options) -> Result<Rates> {
    let jobs = options.sizes.transactions;
    Ok(Rates { ours: ours(jobs).await?, limit: limit(jobs).await? })
}

async fn ours(jobs: usize) -> Result<f64> {
    let ground = Ground::new().await?;
    ground.fill(jobs).await?;
    let receipts = claim(&ground.store, jobs).await?;
    let mut conn = ground.connection().await?;
    let start = Instant::now();
    for receipt in receipts {
        let written = transaction(&mut conn, async |conn| {
            write(conn, receipt.job.get())?;
            Ok::<_, Failure>(ground.store.ack_in(conn, &receipt, Json::null()).await?)
        });
        let _settled: Settled = written.await?;
    }
    finish(&ground, jobs, start).await
}

async fn limit(jobs: usize) -> Result<f64> {
    let ground = Ground::new().await?;
    ground.fill(jobs).await?;
    let mut conn = ground.connection().await?;
    let claimed = bare::commit(&mut conn, |conn| bare::claim(conn, jobs))?;
    let start = Instant::now();
    for job in claimed {
        bare::commit(&mut conn, |conn| {
            write(conn, job.id)?;
            bare::settle(conn, std::iter::once(job.id))
        })?;
    }
    finish(&ground, jobs, start).await
}

fn write(conn: &mut SqliteConnection, job: i64) -> Result {
    Cached(sql_query(WRITE).bind::<BigInt, _>(job)).execute(conn)?;
    Ok(())
}

async fn finish(ground: &Ground, jobs: usize, start: Instant) -> Result<f64> {
    let rate = rate(jobs, start);
    ground.expect(0, jobs).await?;
    ground.expect_rows("SELECT count(DISTINCT job) AS number FROM ledger", jobs).await?;
    Ok(rate)
}

/// Claims them all, on a lease that no round outlives.
async fn claim(store: &SqliteStore, jobs: usize) -> Result<Vec<Receipt>> {
    let request = Dequeue::new("bench", "bench")?.limit(jobs as u32)?.lease_for(Duration::from_secs(600))?;
    let claimed: Vec<_> = store.dequeue(&request).await?.iter().map(|job| job.receipt()).collect();
    if claimed.len() == jobs { Ok(claimed) } else { Err("a claim brought too few jobs".into()) }
}
