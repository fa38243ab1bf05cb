//! `cargo xtask bench`: each backend has an example `bench` that measures it.

use clap::ValueEnum;

use crate::step::{self, Outcome};
use crate::workspace::cargo;

/// The backends that can be measured.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Backend {
    /// leasehold-memory
    Memory,
}

impl Backend {
    fn package(self) -> &'static str {
        match self {
            Self::Memory => "leasehold-memory",
        }
    }
}

pub(crate) fn run(backend: Backend, json: bool) -> Outcome {
    let mut command = cargo(["run", "--release", "--package", backend.package(), "--example", "bench", "--"]);
    if json {
        command.arg("--json");
    }
    step::run("bench", &mut command, "read what the benchmark printed last")
}
