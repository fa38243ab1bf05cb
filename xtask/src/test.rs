//! `cargo xtask test`: every test, doctest and example program.
//!
//! No server is needed yet: the one backend is in memory.

use crate::metadata::Metadata;
use crate::step::{self, Outcome};
use crate::workspace::cargo;

/// The package whose example programs are run; those of other packages are only compiled.
const EXAMPLES: &str = "leasehold-examples";

pub(crate) fn run() -> Outcome {
    tests()?;
    examples()
}

fn tests() -> Outcome {
    step::run(
        "tests",
        &mut cargo(["test", "--workspace", "--all-features", "--no-fail-fast"]),
        "the failing tests are named above; run one alone with `cargo test -p <package> <name>`",
    )
}

fn examples() -> Outcome {
    let metadata = Metadata::read()?;
    let package = metadata.members().filter(|package| package.name == EXAMPLES);
    package.flat_map(|package| package.examples()).try_for_each(example)
}

fn example(name: &str) -> Outcome {
    step::run(
        &format!("example {name}"),
        &mut cargo(["run", "--quiet", "--package", EXAMPLES, "--example", name]),
        &format!("run `cargo run --example {name}` and read what it printed last"),
    )
}
