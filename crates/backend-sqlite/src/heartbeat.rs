//! Extending leases.

use diesel::sql_types::{BigInt, Text};
use leasehold_core::{HeartbeatOutcome, LeaseFor, Receipt, time};
use leasehold_sql::{Rules, Stored, StoredTime};

use crate::error::Failure;
use crate::policy::rules;
use crate::session::Session;

/// Extends each lease that is still live (H5).
pub(crate) fn heartbeat(
    session: &mut Session<'_>,
    receipts: &[Receipt],
    extend: LeaseFor,
) -> Result<Vec<HeartbeatOutcome>, Failure> {
    let mut rules = rules(session)?;
    receipts.iter().map(|receipt| extend_one(session, &mut rules, receipt, extend)).collect()
}

fn extend_one(
    session: &mut Session<'_>,
    rules: &mut Rules,
    receipt: &Receipt,
    extend: LeaseFor,
) -> Result<HeartbeatOutcome, Failure> {
    let sql = session.sql;
    let id = receipt.job.get();
    let mut length = extend;
    if !rules.is_empty() {
        let queue = session.row::<Text, Stored>(&sql.queue_of, vec![id.into()])?;
        length = queue.map_or(extend, |queue| rules.of_stored(&queue).lease_for(extend)); // P6
    }
    let until = time::later(session.now, length.get()); // H1
    let params = vec![id.into(), receipt.epoch.get().into(), until.into(), session.now.into()];
    let extended = session.row::<BigInt, i64>(&sql.heartbeat, params)?.map(i64::or_epoch);
    Ok(extended.map_or(HeartbeatOutcome::Lost, |until| HeartbeatOutcome::Extended {
        until,
        left: time::between(session.now, until),
    }))
}
