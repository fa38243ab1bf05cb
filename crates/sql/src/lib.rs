//! What the SQL backends of Leasehold have in common. For those who write one; users need nothing of it.
//!
//! Databases differ in their statements and their types, not in what the columns mean. So a backend says how it reads a
//! text, a number and a time, and takes the rest from here: the [rows](JobRow) of the tables, the
//! [policies](PolicyRow), the [facts](Facts) that decide when a queue is worth a look, [hints](Subscribers) within the
//! process, and, with the feature `pool`, a pool of connections.

mod bucket;
mod facts;
#[cfg(feature = "pool")]
mod lender;
mod page;
mod policy;
#[cfg(feature = "pool")]
pub mod pool;
mod prefix;
mod reclaim;
mod row;
mod rules;
mod stats;
mod stored;
mod subscribers;
mod turns;
mod tx_error;

pub use crate::bucket::Bucket;
pub use crate::facts::{Facts, explain_finished};
#[cfg(feature = "pool")]
pub use crate::lender::{Lender, Retirement};
pub use crate::page::{after, beyond, page};
pub use crate::policy::{Flag, PolicyRow, micros};
pub use crate::prefix::TablePrefix;
pub use crate::reclaim::reclaimed;
pub use crate::row::{FinishedRow, JobRow, headers_json, readable, readable_one};
pub use crate::rules::Rules;
pub use crate::stats::{Tally, receipt_status};
pub use crate::stored::{Stored, StoredText, StoredTime};
pub use crate::subscribers::Subscribers;
pub use crate::turns::Turns;
pub use crate::tx_error::TxError;
