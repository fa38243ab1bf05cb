//! Licences, banned crates and sources, by cargo-deny where it is installed.

use crate::step::{self, Outcome};
use crate::workspace::cargo;

pub(crate) fn check() -> Outcome {
    let name = "licences, bans and sources";
    if step::output(&mut cargo(["deny", "--version"]), "").is_err() {
        step::not_run(name, "cargo-deny is not installed; `cargo install cargo-deny --locked`");
        return Ok(());
    }
    step::run(
        name,
        &mut cargo(["deny", "--all-features", "check", "bans", "licenses", "sources"]),
        "choose another dependency, or change deny.toml and say why in the commit",
    )
}
