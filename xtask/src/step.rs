//! Runs one thing after another, and shows what is running, how long it took and what to do if it failed.

use std::fmt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a step or a command comes to.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// What went wrong, and what to do next.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    next: String,
}

impl Failure {
    pub(crate) fn new(what: impl Into<String>, next: impl Into<String>) -> Self {
        Self { what: what.into(), next: next.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failed: {}\n  next: {}", self.what, self.next)
    }
}

/// Runs `work` as the step `name`.
pub(crate) fn step<T>(name: &str, work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    eprintln!("▶ {name} …");
    let start = Instant::now();
    let outcome = work();
    let mark = if outcome.is_ok() { '✔' } else { '✘' };
    eprintln!("{mark} {name} {}", elapsed(start.elapsed()));
    outcome
}

/// Runs `command` as the step `name`; it shares our input and output. If it fails, `next` is what to do.
pub(crate) fn run(name: &str, command: &mut Command, next: &str) -> Outcome {
    step(name, || {
        let line = spell(command);
        eprintln!("  {line}");
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Failure::new(format!("{line} ({status})"), next)),
            Err(error) => Err(cannot_start(&line, &error)),
        }
    })
}

/// Runs `command` as the step `name`. What it prints on standard output is the answer; its errors are shown.
pub(crate) fn capture(name: &str, command: &mut Command, next: &str) -> Outcome<String> {
    step(name, || {
        let line = spell(command);
        eprintln!("  {line}");
        let output =
            command.stderr(Stdio::inherit()).output().map_err(|error| cannot_start(&line, &error))?;
        if !output.status.success() {
            return Err(Failure::new(format!("{line} ({})", output.status), next));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    })
}

/// What `command` prints on standard output.
pub(crate) fn output(command: &mut Command, next: &str) -> Outcome<String> {
    let line = spell(command);
    let output = command.output().map_err(|error| cannot_start(&line, &error))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::new(format!("{line} ({})\n{}", output.status, said.trim_end()), next));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Says that something was left out, and why.
pub(crate) fn not_run(name: &str, reason: &str) {
    eprintln!("– {name} not run: {reason}");
}

/// Says something that is worth a look but no failure.
pub(crate) fn warn(message: &str) {
    eprintln!("  warning: {message}");
}

fn cannot_start(line: &str, error: &std::io::Error) -> Failure {
    Failure::new(
        format!("{line} could not be started: {error}"),
        "see that the program is installed and in PATH",
    )
}

/// The command as one would type it.
pub(crate) fn spell(command: &Command) -> String {
    let settings = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let settings =
        settings.map(|(name, value)| format!("{}={}", name.display(), quoted(&value.to_string_lossy())));
    let program = std::path::Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words =
        std::iter::once(program).chain(command.get_args()).map(|word| quoted(&word.to_string_lossy()));
    settings.chain(words).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    if word.contains(' ') { format!("\"{word}\"") } else { word.to_owned() }
}

pub(crate) fn elapsed(time: Duration) -> String {
    match time.as_secs() {
        0..10 => format!("{:.1}s", time.as_secs_f64()),
        seconds @ 10..60 => format!("{seconds}s"),
        seconds => format!("{}m{:02}s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short_to_read() {
        for (millis, text) in
            [(0, "0.0s"), (1_240, "1.2s"), (59_900, "59s"), (62_000, "1m02s"), (3_600_000, "60m00s")]
        {
            assert_eq!(elapsed(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let mut command = Command::new("/somewhere/bin/cargo");
        command.args(["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(spell(&command), "RUSTDOCFLAGS=\"-D warnings\" cargo doc --no-deps");
    }

    #[test]
    fn a_failing_command_is_named_with_what_to_do_next() {
        let mut command = Command::new("cargo");
        command.arg("--no-such-flag").stderr(std::process::Stdio::null());
        let failure = run("nonsense", &mut command, "leave the flag out").unwrap_err();
        let text = failure.to_string();
        assert!(text.contains("cargo --no-such-flag"), "{text}");
        assert!(text.ends_with("next: leave the flag out"), "{text}");
    }
}
