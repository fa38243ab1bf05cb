//! Extending leases.

use std::collections::HashMap;

use diesel::sql_types::{BigInt, Bool, Nullable, Timestamptz};
use diesel_async::AsyncPgConnection;
use leasehold_core::{HeartbeatOutcome, LeaseFor, Receipt, time};
use leasehold_sql::{StoredTime, micros};

use crate::error::Failure;
use crate::row::Time;
use crate::session::Session;
use crate::sql::Statements;
use crate::statement::Statement;

/// Extends each lease that is still live; locks nothing that somebody else has locked (H7).
pub(crate) async fn heartbeat(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    receipts: &[Receipt],
    extend: LeaseFor,
) -> Result<Vec<HeartbeatOutcome>, Failure> {
    type Row = (BigInt, Nullable<Timestamptz>, Timestamptz, Bool);
    let mut distinct: Vec<Receipt> = receipts.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let params = vec![
        distinct.iter().map(|receipt| receipt.job.get()).collect(),
        distinct.iter().map(|receipt| receipt.epoch.get()).collect(),
        micros(extend).into(),
    ];
    let rows: Vec<(i64, Option<Time>, Time, bool)> =
        Statement::<Row>::new(&sql.heartbeat, params).rows(conn).await?;
    let mut outcomes = HashMap::with_capacity(rows.len());
    for (place, until, now, pending) in rows {
        let receipt = usize::try_from(place - 1).ok().and_then(|place| distinct.get(place));
        outcomes.extend(receipt.map(|receipt| (*receipt, outcome(until, now, pending))));
    }
    let lost = HeartbeatOutcome::Lost;
    distinct.retain(|receipt| outcomes.get(receipt).is_none_or(|outcome| *outcome == lost));
    for receipt in locked(conn, sql, &distinct).await? {
        outcomes.insert(receipt, HeartbeatOutcome::Pending); // T10
    }
    Ok(receipts.iter().map(|receipt| outcomes.get(receipt).copied().unwrap_or(lost)).collect()) // H5
}

/// Those of the receipts whose lease has passed, and whose job an open transaction has locked.
async fn locked(
    conn: &mut AsyncPgConnection,
    sql: &Statements,
    receipts: &[Receipt],
) -> Result<Vec<Receipt>, Failure> {
    if receipts.is_empty() {
        return Ok(Vec::new());
    }
    let params = vec![
        receipts.iter().map(|receipt| receipt.job.get()).collect(),
        receipts.iter().map(|receipt| receipt.epoch.get()).collect(),
    ];
    let places = conn.numbers(&sql.locked, params).await?;
    let receipt = |place: i64| receipts.get(usize::try_from(place - 1).ok()?).copied();
    Ok(places.into_iter().filter_map(receipt).collect())
}

fn outcome(until: Option<Time>, now: Time, pending: bool) -> HeartbeatOutcome {
    match until.map(Time::or_epoch) {
        Some(until) => HeartbeatOutcome::Extended { until, left: time::between(now.or_epoch(), until) },
        None if pending => HeartbeatOutcome::Pending,
        None => HeartbeatOutcome::Lost,
    }
}
