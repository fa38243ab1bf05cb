//! What the list of checks must cover.

use leasehold_conformance::checks;
use leasehold_core::contract;

#[test]
fn every_clause_has_a_check() {
    let checks = checks();
    let bare: Vec<_> = contract::ALL
        .iter()
        .filter(|clause| !checks.iter().any(|check| check.clauses.contains(clause)))
        .collect();
    assert!(bare.is_empty(), "clauses without a check: {bare:?}");
}

#[test]
fn no_two_checks_have_one_name() {
    let mut names: Vec<_> = checks().iter().map(|check| check.name).collect();
    names.sort_unstable();
    let before = names.len();
    names.dedup();
    assert_eq!(names.len(), before);
}
