//! The book's page of the contract says what the contract says.

use leasehold_core::contract;

#[test]
fn the_page_has_every_clause_and_no_other() {
    let page = include_str!("../../../../docs/semantics.md");
    let clauses = page.lines().filter_map(|line| line.strip_prefix("* **")?.split_once("** "));
    let of_page: Vec<_> = clauses.filter(|(id, _)| id.len() <= 3).collect();
    for clause in contract::ALL {
        assert!(
            of_page.contains(&(clause.id, clause.promise)),
            "docs/semantics.md should have: * **{}** {}",
            clause.id,
            clause.promise
        );
    }
    assert_eq!(of_page.len(), contract::ALL.len(), "docs/semantics.md has a clause too many");
}
