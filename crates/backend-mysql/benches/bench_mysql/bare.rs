//! The same work through the bare driver: prepared statements in a loop of `START TRANSACTION` and `COMMIT`, with the same columns,
//! arguments and answers as the store's. It keeps none of the promises: it knows no policies, no priorities and no other queues.

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Row, Value};

use crate::Result;
use crate::load::{BATCH, payload};

const CLAIM: &str = include_str!("sql/claim.sql");
const LEASE: &str = include_str!("sql/lease.sql");
const ARCHIVE: &str = include_str!("sql/archive.sql");
const REMOVE: &str = "DELETE FROM job_queue WHERE id IN ({list})";
const ENQUEUE: &str = include_str!("sql/enqueue.sql");
const ROW: &str = "(?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))";

/// A connection as the store's are.
pub(crate) async fn connect(url: &str) -> Result<Conn> {
    let opts = Opts::from_url(&url.replacen("mariadb:", "mysql:", 1))?;
    let opts = OptsBuilder::from_opts(opts).prefer_socket(false).tcp_nodelay(true);
    let init = vec!["SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"];
    Ok(Conn::new(opts.init(init)).await?)
}

/// So many of them.
pub(crate) async fn clients(url: &str, count: usize) -> Result<Vec<Conn>> {
    futures_util::future::try_join_all((0..count).map(|_| connect(url))).await
}

/// Enqueues so many jobs at a time, so often.
pub(crate) async fn enqueue(mut conn: Conn, jobs: usize, runs: usize) -> Result {
    let payload = payload();
    for _ in 0..runs {
        let row = || -> [Value; 7] {
            [
                "bench".into(),
                "bench".into(),
                0.into(),
                Value::NULL,
                payload.as_str().into(),
                "{}".into(),
                5.into(),
            ]
        };
        let params: Vec<Value> = (0..jobs).flat_map(|_| row()).collect();
        conn.exec_drop(listed(ENQUEUE, ROW, jobs), params).await?;
        if conn.last_insert_id().is_none() {
            return Err("a job has no id".into());
        }
    }
    Ok(())
}

/// Leases so many jobs.
pub(crate) async fn claim(conn: &mut Conn, limit: usize) -> Result<Vec<i64>> {
    conn.query_drop("START TRANSACTION").await?;
    let rows: Vec<Row> = conn.exec(CLAIM, (limit,)).await?;
    let ids: Option<Vec<i64>> = rows.iter().map(|row| row.get("id")).collect();
    let ids = ids.ok_or("a claim brought a job without an id")?;
    if !ids.is_empty() {
        conn.exec_drop(listed(LEASE, "?", ids.len()), values(&ids)).await?;
    }
    conn.query_drop("COMMIT").await?;
    Ok(ids)
}

/// Moves jobs to the history, within a transaction.
pub(crate) async fn settle(conn: &mut Conn, ids: &[i64]) -> Result {
    conn.exec_drop(listed(ARCHIVE, "?", ids.len()), values(ids)).await?;
    conn.exec_drop(listed(REMOVE, "?", ids.len()), values(ids)).await?;
    Ok(())
}

/// Claims and settles batches until nothing is left: while one is settled, the next is claimed, each on a connection of its own, as
/// the store's lanes do. How many jobs it were.
pub(crate) async fn drain(mut claimer: Conn, mut settler: Conn) -> Result<usize> {
    let (mut batch, mut sum) = (Vec::new(), 0);
    loop {
        let (settled, next) = tokio::join!(settle_batch(&mut settler, &batch), claim(&mut claimer, BATCH));
        settled?;
        sum += batch.len();
        batch = next?;
        if batch.is_empty() {
            return Ok(sum);
        }
    }
}

async fn settle_batch(conn: &mut Conn, ids: &[i64]) -> Result {
    if ids.is_empty() {
        return Ok(());
    }
    conn.query_drop("START TRANSACTION").await?;
    settle(conn, ids).await?;
    Ok(conn.query_drop("COMMIT").await?)
}

fn listed(text: &str, item: &str, count: usize) -> String {
    text.replace("{list}", &vec![item; count].join(","))
}

fn values(ids: &[i64]) -> Vec<Value> {
    ids.iter().map(|id| Value::from(*id)).collect()
}
