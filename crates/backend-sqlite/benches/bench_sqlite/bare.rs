//! The same work on a bare connection: prepared statements in a loop of `BEGIN IMMEDIATE` and `COMMIT`. It keeps none of the
//! promises: it knows no policies, no receipts and no other queues.

use diesel::backend::Backend;
use diesel::query_builder::{AstPass, QueryFragment, QueryId, SqlQuery};
use diesel::result::QueryResult;
use diesel::sql_types::{BigInt, Text, Untyped};
use diesel::{QueryableByName, RunQueryDsl, SqliteConnection, sql_query};

use crate::load::{BATCH, payload};
use crate::{Failure, Result};

pub(crate) const ENQUEUE: &str = include_str!("sql/enqueue.sql");
const CLAIM: &str = include_str!("sql/claim.sql");
const ARCHIVE: &str = include_str!("sql/archive.sql");
const REMOVE: &str = include_str!("sql/remove.sql");

/// A statement that diesel keeps prepared.
pub(crate) struct Cached<Q>(pub(crate) Q);

impl<Q> QueryId for Cached<Q> {
    type QueryId = ();
    const HAS_STATIC_QUERY_ID: bool = false;
}

impl<Q> diesel::query_builder::Query for Cached<Q> {
    type SqlType = Untyped;
}

impl<DB: Backend, Q: QueryFragment<DB>> QueryFragment<DB> for Cached<Q> {
    fn walk_ast<'b>(&'b self, out: AstPass<'_, 'b, DB>) -> QueryResult<()> {
        self.0.walk_ast(out)
    }

    fn is_safe_to_cache_prepared(&self, _: &DB) -> QueryResult<bool> {
        Ok(true)
    }
}

impl<Q, C> RunQueryDsl<C> for Cached<Q> {}

#[derive(QueryableByName)]
pub(crate) struct Number {
    #[diesel(sql_type = BigInt)]
    pub(crate) number: i64,
}

/// What a claim answers of each job.
#[derive(QueryableByName)]
pub(crate) struct Claimed {
    #[diesel(sql_type = BigInt)]
    pub(crate) id: i64,
    #[diesel(sql_type = Text)]
    payload: String,
}

/// Does `work` in one transaction.
pub(crate) fn commit<T>(
    conn: &mut SqliteConnection,
    work: impl FnOnce(&mut SqliteConnection) -> Result<T>,
) -> Result<T> {
    Cached(sql_query("BEGIN IMMEDIATE")).execute(conn)?;
    let done = work(conn)?;
    Cached(sql_query("COMMIT")).execute(conn)?;
    Ok(done)
}

/// Enqueues so many jobs.
pub(crate) fn enqueue(conn: &mut SqliteConnection, jobs: usize) -> Result {
    let payload = payload();
    for _ in 0..jobs {
        let insert = Cached(sql_query(ENQUEUE).bind::<Text, _>(&payload).bind::<BigInt, _>(now()));
        let _id: Vec<Number> = insert.load(conn)?;
    }
    Ok(())
}

/// Leases a batch.
pub(crate) fn claim(conn: &mut SqliteConnection, limit: usize) -> Result<Vec<Claimed>> {
    let claim = sql_query(CLAIM).bind::<BigInt, _>(now()).bind::<BigInt, _>(limit as i64);
    let jobs: Vec<Claimed> = Cached(claim).load(conn)?;
    if jobs.iter().any(|job| job.payload.is_empty()) {
        return Err(Failure::from("a claim brought a job without a payload"));
    }
    Ok(jobs)
}

/// Moves jobs to the history.
pub(crate) fn settle(conn: &mut SqliteConnection, jobs: impl Iterator<Item = i64>) -> Result {
    let ids = format!("[{}]", jobs.map(|id| id.to_string()).collect::<Vec<_>>().join(","));
    Cached(archive(&ids)).execute(conn)?;
    Cached(sql_query(REMOVE).bind::<Text, _>(&ids)).execute(conn)?;
    Ok(())
}

type Bound<'a> = diesel::query_builder::BoxedSqlQuery<'a, diesel::sqlite::Sqlite, SqlQuery>;

fn archive(ids: &str) -> Bound<'_> {
    sql_query(ARCHIVE).into_boxed().bind::<Text, _>(ids).bind::<BigInt, _>(now())
}

/// Claims and settles batches until nothing is left.
pub(crate) fn drain(conn: &mut SqliteConnection) -> Result<usize> {
    let mut sum = 0;
    loop {
        let jobs = commit(conn, |conn| claim(conn, BATCH))?;
        if jobs.is_empty() {
            return Ok(sum);
        }
        commit(conn, |conn| settle(conn, jobs.iter().map(|job| job.id)))?;
        sum += jobs.len();
    }
}

fn now() -> i64 {
    chrono::Utc::now().timestamp_micros()
}
