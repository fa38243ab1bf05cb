//! `cargo xtask verify`: everything that must hold before a change is merged. Changes no source file.

use crate::metadata::Metadata;
use crate::step::{self, Outcome};
use crate::workspace::cargo;
use crate::{book, deny, features, msrv, rules, test};

pub(crate) fn run(no_tests: bool) -> Outcome {
    format()?;
    rules::check()?;
    book::check()?;
    let metadata = Metadata::read()?;
    msrv::check_graph(&metadata)?;
    clippy()?;
    docs()?;
    features::check(&metadata)?;
    msrv::check_build(&metadata)?;
    deny::check()?;
    if no_tests {
        step::not_run("tests", "--no-tests was given; run `cargo xtask test`");
        return Ok(());
    }
    test::run(&test::Selection::default())
}

fn format() -> Outcome {
    step::run("format", &mut cargo(["fmt", "--all", "--check"]), "run `cargo xtask fix`")
}

fn clippy() -> Outcome {
    let args =
        ["clippy", "--workspace", "--all-targets", "--all-features", "--locked", "--", "-D", "warnings"];
    step::run("clippy", &mut cargo(args), "run `cargo xtask fix`, then mend by hand what is left")
}

fn docs() -> Outcome {
    let mut command = cargo(["doc", "--workspace", "--all-features", "--no-deps", "--locked"]);
    step::run(
        "docs",
        command.env("RUSTDOCFLAGS", "-D warnings"),
        "mend the links and docs named above; a clause that was removed is still linked to",
    )
}
