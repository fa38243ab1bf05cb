//! Which queues of a prefix are worth a look, without a visit to those whose jobs are all for later.
//!
//! A waiting job is *for later* if it was not available when it was last written. `ready_queue` of its row is then empty; that of a job for now is its
//! queue; and a job that is leased, or whose attempts are spent, has none. The index that begins with it has the jobs for now by queue, those for
//! later by time, and the others by the time of their reclaim. It only tells where to look: whether a job is Ready is decided as before.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use diesel::sql_types::{Datetime, Text};
use leasehold_core::QueuePrefix;
use leasehold_sql::{Stored, StoredTime, after, beyond};

use crate::error::Failure;
use crate::row::Time;
use crate::session::Session;

/// So many jobs for later that have come due are read. If there are more, a claim visits every queue.
const DUE: usize = 1000;
/// So many names are read in one statement.
const STEPS: usize = 1000;
/// So many jobs for later, and so many leases, are read to find what comes first.
const SOON: usize = 100;

/// What a claim looks for in a prefix.
pub(crate) struct Visits {
    /// Queues with jobs for later that have come due; `None` if those are too many.
    due: Option<BTreeSet<String>>,
}

impl Visits {
    pub(crate) async fn new(
        session: &mut Session<'_>,
        prefix: &QueuePrefix,
        now: DateTime<Utc>,
    ) -> Result<Self, Failure> {
        let sql = session.sql;
        let params = vec![now.into(), prefix.as_str().into(), beyond(prefix.as_str()).into(), DUE.into()];
        let due: Vec<Stored> = session.rows::<Text, _>(&sql.due_queues, params).await?;
        let due = (due.len() < DUE).then(|| due.iter().map(|name| name.to_string()).collect());
        Ok(Self { due })
    }

    /// Names of queues that may have Ready jobs, from one on and before another, and whether these are all.
    pub(crate) async fn page(
        &self,
        session: &mut Session<'_>,
        from: &str,
        to: &str,
        page: usize,
    ) -> Result<(Vec<String>, bool), Failure> {
        let Some(due) = &self.due else {
            let names = names(session, from, to, page).await?;
            let is_all = names.len() < page;
            return Ok((names, is_all));
        };
        let ready = ready(session, from, to, page).await?;
        let last = ready.last().filter(|_| ready.len() == page).cloned();
        let is_here = |name: &&String| {
            name.as_str() >= from && name.as_str() < to && last.as_ref().is_none_or(|last| *name <= last)
        };
        let mut names: BTreeSet<String> = due.iter().filter(is_here).cloned().collect();
        names.extend(ready);
        Ok((names.into_iter().collect(), last.is_none()))
    }
}

/// Queues with jobs for now, from one name on and before another, up to `most` of them.
pub(crate) async fn ready(
    session: &mut Session<'_>,
    from: &str,
    to: &str,
    most: usize,
) -> Result<Vec<String>, Failure> {
    let text = &session.sql.ready_queues;
    walk(session, text, from, to, most).await
}

/// Queues with live jobs, from one name on and before another, up to `most` of them.
pub(crate) async fn names(
    session: &mut Session<'_>,
    from: &str,
    to: &str,
    most: usize,
) -> Result<Vec<String>, Failure> {
    let text = &session.sql.queues;
    walk(session, text, from, to, most).await
}

async fn walk<'c>(
    session: &mut Session<'c>,
    text: &'c str,
    from: &str,
    to: &str,
    most: usize,
) -> Result<Vec<String>, Failure> {
    let (mut names, mut from) = (Vec::<String>::new(), from.to_owned());
    loop {
        let wanted = (most - names.len()).min(STEPS);
        let params = vec![from.clone().into(), to.to_owned().into(), wanted.into()];
        let rows: Vec<Stored> = session.rows::<Text, _>(text, params).await?;
        let before = names.len();
        // MySQL sends a row for each name, MariaDB one row with a line for each.
        names.extend(rows.iter().flat_map(|row| row.lines()).map(name));
        let found = names.len() - before;
        let next = names.last().map_or(String::new(), |last| after(last));
        // A name that cannot be read may sort after what it is marked as: never go back.
        if found < wanted || names.len() >= most || next <= from {
            return Ok(names);
        }
        from = next;
    }
}

/// The name that these hexadecimal digits spell. What is not UTF-8 is marked: nobody's name.
fn name(digits: &str) -> String {
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or_default() as u8;
    let bytes: Vec<u8> = digits
        .as_bytes()
        .chunks(2)
        .map(|two| two.iter().fold(0, |sum, byte| 16 * sum + digit(*byte)))
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The queues in which time changes something first: by a job for later, or by a lease or a job to be reclaimed.
pub(crate) struct Soon {
    pub(crate) queues: BTreeSet<String>,
    /// Up to when no such queue is left out; `None` if none is at all.
    pub(crate) seen_to: Option<DateTime<Utc>>,
}

impl Soon {
    pub(crate) async fn find(session: &mut Session<'_>, prefix: &QueuePrefix) -> Result<Self, Failure> {
        let sql = session.sql;
        let mut soon = Self { queues: BTreeSet::new(), seen_to: None };
        for text in [&sql.later_queues, &sql.held_queues] {
            let params = vec![prefix.as_str().into(), beyond(prefix.as_str()).into(), SOON.into()];
            let rows: Vec<(Stored, Time)> = session.rows::<(Text, Datetime), _>(text, params).await?;
            if let Some((_, last)) = rows.last().filter(|_| rows.len() == SOON) {
                soon.seen_to = soon.seen_to.into_iter().chain(Some(last.or_epoch())).min();
            }
            soon.queues.extend(rows.iter().map(|(name, _)| name.to_string()));
        }
        Ok(soon)
    }
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn a_name_is_spelt_in_hexadecimal_digits() {
        assert_eq!(name("726F6F6D3A37"), "room:7");
        assert_eq!(name("710A"), "q\n");
        assert_eq!(name("71FF"), "q\u{fffd}");
        assert_eq!(name(""), "");
    }
}
