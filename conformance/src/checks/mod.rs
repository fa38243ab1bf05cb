//! The checks, by operation.

mod bulk;
mod cancel;
mod dequeue;
mod enqueue;
mod heartbeat;
mod interleave;
mod order;
mod race;
mod reclaim;
mod settle;
mod stale;
mod transaction;

use crate::check::Check;

/// Every check, in the order of the contract.
pub(crate) fn all() -> Vec<Check> {
    [
        enqueue::CHECKS,
        dequeue::CHECKS,
        order::CHECKS,
        settle::CHECKS,
        stale::CHECKS,
        heartbeat::CHECKS,
        reclaim::CHECKS,
        race::CHECKS,
        bulk::CHECKS,
        cancel::CHECKS,
        transaction::CHECKS,
        interleave::CHECKS,
        crate::model::CHECKS,
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use leasehold_core::contract;

    use super::all;

    #[test]
    fn every_clause_has_a_check() {
        let checks = all();
        let bare: Vec<_> = contract::ALL
            .iter()
            .filter(|clause| !checks.iter().any(|check| check.clauses.contains(clause)))
            .collect();
        assert!(bare.is_empty(), "clauses without a check: {bare:?}");
    }

    #[test]
    fn no_two_checks_have_one_name() {
        let mut names: Vec<_> = all().iter().map(|check| check.name).collect();
        names.sort_unstable();
        let before = names.len();
        names.dedup();
        assert_eq!(names.len(), before);
    }
}
