//! The oldest Rust that we promise to compile with: `rust-version` of the workspace.

use std::process::Command;

use crate::metadata::{Metadata, Package};
use crate::step::{self, Failure, Outcome};
use crate::version::RustVersion;
use crate::workspace;

/// No package in use asks for a newer Rust than we promise.
pub(crate) fn check_graph(metadata: &Metadata) -> Outcome {
    step::step("rust version of dependencies", || {
        let promised = promised(metadata)?;
        let newer = newer_than(promised, metadata.resolved());
        if newer.is_empty() {
            return Ok(());
        }
        Err(Failure::new(
            format!("the workspace promises Rust {promised}, but {}", newer.join(", ")),
            "take an older version of the dependency, or raise rust-version in Cargo.toml and say so in CHANGELOG.md",
        ))
    })
}

/// The workspace compiles with that very Rust, if it is installed.
pub(crate) fn check_build(metadata: &Metadata) -> Outcome {
    let promised = promised(metadata)?;
    let name = format!("check with Rust {promised}");
    let Some(toolchain) = installed(promised) else {
        step::not_run(
            &name,
            &format!(
                "that version is not installed; `rustup toolchain install {promised} --profile minimal`"
            ),
        );
        return Ok(());
    };
    let mut command = Command::new("rustup");
    // A directory of its own, so that the two compilers do not undo each other's work.
    command.args(["run", &toolchain, "cargo", "check", "--workspace", "--all-targets", "--all-features"]);
    command.args(["--locked", "--target-dir", "target/msrv"]).current_dir(workspace::root());
    step::run(&name, &mut command, "write it without what came after that version, or raise rust-version")
}

/// The newest `rust-version` of our own packages; they share one.
fn promised(metadata: &Metadata) -> Outcome<RustVersion> {
    let versions = metadata.members().filter_map(rust_version);
    versions.max().ok_or_else(|| {
        Failure::new("no package of the workspace has a rust-version", "set it under [workspace.package]")
    })
}

fn newer_than<'a>(promised: RustVersion, packages: impl Iterator<Item = &'a Package>) -> Vec<String> {
    let asks = packages.filter_map(|package| Some((package, rust_version(package)?)));
    asks.filter(|(_, asked)| *asked > promised)
        .map(|(package, asked)| format!("{} {} asks for {asked}", package.name, package.version))
        .collect()
}

fn rust_version(package: &Package) -> Option<RustVersion> {
    package.rust_version.as_deref()?.parse().ok()
}

fn installed(promised: RustVersion) -> Option<String> {
    let list = step::output(Command::new("rustup").args(["toolchain", "list"]), "").ok()?;
    find_toolchain(&list, promised)
}

/// The first toolchain of that release in the output of `rustup toolchain list`.
fn find_toolchain(list: &str, wanted: RustVersion) -> Option<String> {
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    let mut matching = names.filter(|name| {
        let version = name.split('-').next().and_then(|version| version.parse::<RustVersion>().ok());
        version.is_some_and(|version| version.same_release(wanted))
    });
    matching.next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::tests::sample;

    #[test]
    fn the_members_promise_and_a_dependency_asks_for_more() {
        let metadata = sample();
        let promised = promised(&metadata).unwrap();
        assert_eq!(promised.to_string(), "1.88");
        assert_eq!(newer_than(promised, metadata.resolved()), ["used 2.0.0 asks for 1.90.1"]);
    }

    #[test]
    fn a_toolchain_is_found_by_its_release() {
        let list = "stable-x86_64-unknown-linux-gnu (active, default)\n1.88.0-x86_64-unknown-linux-gnu\n";
        let wanted = "1.88".parse().unwrap();
        assert_eq!(find_toolchain(list, wanted).as_deref(), Some("1.88.0-x86_64-unknown-linux-gnu"));
        assert_eq!(find_toolchain(list, "1.89".parse().unwrap()), None);
    }
}
