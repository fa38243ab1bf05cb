//! Runs programs that end by themselves.

use std::process::{Command, Stdio};

use crate::Error;

/// Of what a program said before it failed, so much is shown.
const LINES: usize = 20;

/// What `command` prints on standard output; if it fails, the error has what it said last.
pub(crate) fn run(command: &mut Command) -> Result<String, Error> {
    run_with(command, Stdio::null())
}

/// The same, with something to read on standard input.
pub(crate) fn run_with(command: &mut Command, input: impl Into<Stdio>) -> Result<String, Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(input).output().map_err(Error::io(format!("{name} could not be started")))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    let complaint = format!("{said}{}", String::from_utf8_lossy(&output.stderr));
    let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy()).collect();
    Err(Error::new(format!(
        "{name} {} failed ({})\n{}",
        args.join(" "),
        output.status,
        last_lines(&complaint, LINES)
    )))
}

/// Whether `program` is in PATH.
pub(crate) fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// The end of `text`.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_shows_what_the_program_said() {
        let error = run(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("exit status: 3") && text.ends_with("out\nerr"), "{text}");
    }

    #[test]
    fn only_the_end_of_a_long_text_is_kept() {
        assert_eq!(last_lines("a\nb\nc\n\n", 2), "b\nc");
        assert_eq!(last_lines("a", 2), "a");
    }

    #[test]
    fn programs_are_looked_for_in_the_path() {
        assert!(exists("sh"));
        assert!(!exists("no-such-program-anywhere"));
    }
}
