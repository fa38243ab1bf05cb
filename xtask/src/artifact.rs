//! Programs that Cargo has built, found by what it says while building.

use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;

use crate::step::{self, Outcome};

/// A program that can be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    /// The folder of its package, where Cargo would start it.
    pub(crate) folder: PathBuf,
    /// The name of its target, such as `conformance`, or that of the package for the unit tests of a library.
    pub(crate) target: String,
    pub(crate) kind: Kind,
    pub(crate) path: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The unit tests of a library or a program.
    Unit,
    /// A file or folder below `tests`.
    Test,
    /// A file or folder below `examples`.
    Example,
    /// A file or folder below `benches`.
    Bench,
}

/// Runs a `cargo … --message-format=json-render-diagnostics` as the step `name`. The programs that it has built, in the
/// order in which they were ready.
pub(crate) fn build(name: &str, command: &mut Command) -> Outcome<Vec<Program>> {
    command.arg("--message-format=json-render-diagnostics");
    let said = step::capture(name, command, "mend what the compiler names above")?;
    Ok(said.lines().filter_map(program).collect())
}

/// One line of what Cargo says.
#[derive(Deserialize)]
struct Message {
    reason: String,
    target: Option<Target>,
    manifest_path: Option<PathBuf>,
    executable: Option<PathBuf>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

fn program(line: &str) -> Option<Program> {
    let message: Message = serde_json::from_str(line).ok()?;
    let (target, path) = (message.target?, message.executable?);
    if message.reason != "compiler-artifact" {
        return None;
    }
    let kind = match target.kind.first()?.as_str() {
        "test" => Kind::Test,
        "example" => Kind::Example,
        "bench" => Kind::Bench,
        _ if message.profile.is_some_and(|profile| profile.test) => Kind::Unit,
        _ => return None,
    };
    let folder = message.manifest_path?.parent()?.to_owned();
    Some(Program { folder, target: target.name, kind, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(kind: &str, test: bool, executable: &str) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/r/a/Cargo.toml","target":{{"name":"t","kind":["{kind}"]}},
            "profile":{{"test":{test}}},"executable":{executable}}}"#
        )
        .replace('\n', "")
    }

    #[test]
    fn programs_are_found_among_what_cargo_says() {
        let expected =
            |kind| Program { folder: "/r/a".into(), target: "t".into(), kind, path: "/t/x".into() };
        for (line, kind) in [
            (artifact("lib", true, "\"/t/x\""), Some(Kind::Unit)),
            (artifact("test", true, "\"/t/x\""), Some(Kind::Test)),
            (artifact("example", false, "\"/t/x\""), Some(Kind::Example)),
            (artifact("bench", false, "\"/t/x\""), Some(Kind::Bench)),
            (artifact("bin", false, "\"/t/x\""), None),
            (artifact("lib", false, "null"), None),
            ("warning: not a message".to_owned(), None),
        ] {
            assert_eq!(program(&line), kind.map(expected), "{line}");
        }
    }
}
