//! `cargo xtask fix`: what can be mended by machine.

use crate::step::{self, Outcome};
use crate::workspace::cargo;

pub(crate) fn run() -> Outcome {
    // Clippy first: what it writes is not always formatted.
    let mut clippy = cargo(["clippy", "--fix", "--allow-dirty", "--allow-staged", "--allow-no-vcs"]);
    clippy.args(["--workspace", "--all-targets", "--all-features"]);
    step::run("clippy", &mut clippy, "mend by hand what is named above; the code must compile first")?;
    step::run("format", &mut cargo(["fmt", "--all"]), "mend the syntax error named above")
}
