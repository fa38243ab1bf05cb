//! What must not compile, and what the compiler says to it.
//!
//! `TRYBUILD=overwrite cargo test -p leasehold-worker --test it ui` writes the texts anew.

#[test]
fn mistakes_do_not_compile_and_the_compiler_says_what_to_do() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
