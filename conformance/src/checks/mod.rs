//! The checks, by operation.

mod admin;
mod backoff;
mod bulk;
mod cancel;
mod dequeue;
mod derived;
mod durable;
mod enqueue;
mod events;
mod explain;
mod fifo;
mod heartbeat;
mod input;
mod interleave;
mod interleave_enqueue;
mod left_behind;
mod limits;
mod list;
mod locked;
mod lost;
mod next;
mod order;
mod page;
mod pause;
mod policy;
mod prune;
mod prune_keys;
mod race;
mod race_lease;
mod race_place;
mod rate;
mod receipts;
mod reclaim;
mod redrive;
mod scene;
mod selection;
mod settle;
mod stale;
mod stats;
mod time;
mod transaction;
mod transaction_ended;
mod transaction_lock;
mod transaction_old;
mod transaction_verdict;
mod twin;
mod unique;
mod verdict;
mod wake;

use crate::check::Check;

/// Every check, in the order of the contract.
pub(crate) fn all() -> Vec<Check> {
    [
        enqueue::CHECKS,
        unique::CHECKS,
        dequeue::CHECKS,
        order::CHECKS,
        settle::CHECKS,
        verdict::CHECKS,
        stale::CHECKS,
        heartbeat::CHECKS,
        reclaim::CHECKS,
        lost::CHECKS,
        twin::CHECKS,
        admin::CHECKS,
        redrive::CHECKS,
        list::CHECKS,
        page::CHECKS,
        selection::CHECKS,
        receipts::CHECKS,
        stats::CHECKS,
        explain::CHECKS,
        next::CHECKS,
        derived::CHECKS,
        durable::CHECKS,
        prune::CHECKS,
        prune_keys::CHECKS,
        pause::CHECKS,
        policy::CHECKS,
        backoff::CHECKS,
        limits::CHECKS,
        rate::CHECKS,
        fifo::CHECKS,
        input::CHECKS,
        time::CHECKS,
        wake::CHECKS,
        events::CHECKS,
        race::CHECKS,
        race_lease::CHECKS,
        race_place::CHECKS,
        bulk::CHECKS,
        cancel::CHECKS,
        transaction::CHECKS,
        transaction_verdict::CHECKS,
        transaction_ended::CHECKS,
        transaction_lock::CHECKS,
        transaction_old::CHECKS,
        interleave::CHECKS,
        interleave_enqueue::CHECKS,
        left_behind::CHECKS,
        locked::CHECKS,
        crate::model::CHECKS,
    ]
    .concat()
}
