//! Extending leases.

use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, Utc};
use diesel::sql_types::{BigInt, Datetime, Nullable, Text};
use leasehold_core::{HeartbeatOutcome, LeaseFor, Receipt, time};
use leasehold_sql::{Stored, StoredTime};

use crate::error::Failure;
use crate::policy::rules;
use crate::row::Time;
use crate::session::Session;
use crate::sql::Repeated;

/// Extends each lease that is still live; waits for nothing that somebody else has locked (H7).
pub(crate) async fn heartbeat(
    session: &mut Session<'_>,
    receipts: &[Receipt],
    extend: LeaseFor,
) -> Result<Vec<HeartbeatOutcome>, Failure> {
    let (now, mut rules) = rules(session).await?;
    let mut ids: Vec<i64> = receipts.iter().map(|receipt| receipt.job.get()).collect();
    ids.sort_unstable();
    ids.dedup();
    let sql = session.sql;
    // A lease that has passed is not locked together with the others: a reclaim may be about to take it.
    let before = leases(session, &sql.seen, &ids).await?;
    let is_live = |receipt: &&Receipt| live(&before, receipt, now).is_some();
    let mut ids: Vec<i64> = receipts.iter().filter(is_live).map(|receipt| receipt.job.get()).collect();
    ids.sort_unstable();
    ids.dedup();
    session.begin().await?;
    let locked = leases(session, &sql.live, &ids).await?;
    ids.retain(|id| !locked.contains_key(id));
    let seen = leases(session, &sql.seen, &ids).await?;
    let mut outcomes: HashMap<Receipt, HeartbeatOutcome> = HashMap::with_capacity(receipts.len());
    let mut extended: BTreeMap<LeaseFor, Vec<i64>> = BTreeMap::new();
    for receipt in receipts {
        let outcome = match (live(&locked, receipt, now), live(&seen, receipt, now)) {
            (Some(lease), _) => {
                let length = rules.of_stored(&lease.queue).lease_for(extend); // P6
                extended.entry(length).or_default().push(receipt.job.get());
                let until = time::later(now, length.get()).max(lease.until); // H1, H2
                HeartbeatOutcome::Extended { until, left: time::between(now, until) }
            }
            (None, Some(_)) => HeartbeatOutcome::Pending,
            (None, None) => HeartbeatOutcome::Lost, // H3, H4
        };
        outcomes.insert(*receipt, outcome);
    }
    for (length, mut ids) in extended {
        ids.sort_unstable();
        ids.dedup();
        let until = time::later(now, length.get());
        session.count_listed(&sql.extend, vec![until.into(), now.into()], &ids, Vec::new()).await?;
    }
    session.commit().await?;
    let is_passed = |receipt: &&Receipt| passed(&before, receipt, now).is_some();
    for receipt in locked_elsewhere(session, receipts.iter().filter(is_passed)).await? {
        outcomes.insert(*receipt, HeartbeatOutcome::Pending); // T10
    }
    let lost = HeartbeatOutcome::Lost;
    Ok(receipts.iter().map(|receipt| outcomes.get(receipt).copied().unwrap_or(lost)).collect()) // H5
}

/// Those of the receipts, whose leases have passed, whose job an open transaction has locked. The other jobs are locked for one
/// statement; a reclaim that meets it tries again.
async fn locked_elsewhere<'r>(
    session: &mut Session<'_>,
    receipts: impl Iterator<Item = &'r Receipt>,
) -> Result<Vec<&'r Receipt>, Failure> {
    let receipts: Vec<&Receipt> = receipts.collect();
    let mut ids: Vec<i64> = receipts.iter().map(|receipt| receipt.job.get()).collect();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    ids.sort_unstable();
    ids.dedup();
    let sql = session.sql;
    if session.is_lent {
        session.begin().await?; // It may be without autocommit, and then the lock would outlast the statement.
    }
    let free = leases(session, &sql.live, &ids).await?;
    session.roll_back().await?;
    ids.retain(|id| !free.contains_key(id));
    let seen = leases(session, &sql.seen, &ids).await?;
    Ok(receipts.into_iter().filter(|receipt| held(&seen, receipt).is_some()).collect())
}

/// A job that has a lease.
struct Leased {
    epoch: i64,
    until: DateTime<Utc>,
    queue: Stored,
}

async fn leases(
    session: &mut Session<'_>,
    statement: &Repeated,
    ids: &[i64],
) -> Result<HashMap<i64, Leased>, Failure> {
    type Row = (BigInt, BigInt, Nullable<Datetime>, Text);
    let rows: Vec<(i64, i64, Option<Time>, Stored)> =
        session.listed::<Row, _>(statement, Vec::new(), ids, Vec::new()).await?;
    let leased = |(id, epoch, until, queue): (i64, i64, Option<Time>, Stored)| {
        Some((id, Leased { epoch, until: until?.or_epoch(), queue }))
    };
    Ok(rows.into_iter().filter_map(leased).collect())
}

/// The lease of a receipt, if it is live.
fn live<'a>(leases: &'a HashMap<i64, Leased>, receipt: &Receipt, now: DateTime<Utc>) -> Option<&'a Leased> {
    held(leases, receipt).filter(|lease| lease.until > now)
}

/// The lease of a receipt, if it has passed and was not reclaimed.
fn passed<'a>(leases: &'a HashMap<i64, Leased>, receipt: &Receipt, now: DateTime<Utc>) -> Option<&'a Leased> {
    held(leases, receipt).filter(|lease| lease.until <= now)
}

/// The lease of a receipt that is good.
fn held<'a>(leases: &'a HashMap<i64, Leased>, receipt: &Receipt) -> Option<&'a Leased> {
    leases.get(&receipt.job.get()).filter(|lease| lease.epoch == receipt.epoch.get())
}
