//! Runs the conformance suite against a backend with a fault, until a check fails.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::accepted::{self, Accepted};
use super::image::Image;
use super::text::{Backend, Fault, Text};
use super::{Selection, draw};
use crate::artifact::{self, Kind};
use crate::servers::Running;
use crate::step::{self, Failure, Outcome};
use crate::workspace::{cargo, root};

/// A suite that takes longer has been brought to a halt by the fault: no run without one takes half of it.
const PATIENCE: Duration = Duration::from_secs(900);

/// What the suite has said of a fault.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// This check has failed, or the program.
    Caught(String),
    /// The suite did not end.
    Hangs,
    Missed,
}

pub(super) fn run(backend: &'static Backend, selection: &Selection) -> Outcome {
    let texts = backend.texts(&selection.file)?;
    let accepted = Accepted::read(&backend.folder())?;
    let mut faults: Vec<Fault> = texts.iter().flat_map(|text| backend.faults(text)).collect();
    for stale in accepted.stale(&texts, &faults) {
        step::warn(&format!("{} speaks of a fault that is not there: {stale}", accepted::FILE));
    }
    let all = faults.len();
    faults.retain(|fault| !accepted.has(fault));
    eprintln!("  {all} faults in {} texts, {} of them accepted", texts.len(), all - faults.len());
    let chosen = draw(faults, selection.sample, selection.seed);
    if selection.list {
        chosen.iter().for_each(|fault| eprintln!("{fault}"));
        return Ok(());
    }
    let servers = if backend.needs_servers { Running::start()? } else { Running::default() };
    let mut trial = Trial { image: image(backend)?, backend, servers };
    let missed = trial.all(&texts, &chosen)?;
    conclude(backend, &chosen, &missed)
}

/// The suite's program, as Cargo builds it.
fn image(backend: &Backend) -> Outcome<Image> {
    let package = format!("leasehold-{}", backend.name);
    let words =
        ["test", "--no-run", "--all-features", "--locked", "--package", &package, "--test", "conformance"];
    let programs = artifact::build("build", &mut cargo(words))?;
    let suite = programs.iter().find(|program| program.kind == Kind::Test && program.target == "conformance");
    let suite =
        suite.ok_or_else(|| Failure::new(format!("{package} has no suite"), "see what Cargo says above"))?;
    Image::read(&suite.path, root().join("target").join(format!("mutant-of-{}", backend.name)))
}

struct Trial {
    backend: &'static Backend,
    image: Image,
    servers: Running,
}

impl Trial {
    /// Tries all of them: those that no check has noticed.
    fn all<'a>(&mut self, texts: &[Text], faults: &'a [Fault]) -> Outcome<Vec<&'a Fault>> {
        let sound = self.verdict(&[], "", "")?;
        if sound != Verdict::Missed {
            return Err(Failure::new(
                format!("the suite fails without a fault: {sound:?}"),
                "mend that first",
            ));
        }
        let mut missed = Vec::new();
        for (number, fault) in faults.iter().enumerate() {
            let text = texts.iter().find(|text| text.name == fault.file);
            let text = text.ok_or_else(|| Failure::new(format!("{} is gone", fault.file), "run it again"))?;
            let places = self.image.places(text)?;
            let start = Instant::now();
            let verdict = self.verdict(&places, &fault.change.apply(&text.text), &text.name)?;
            let took = step::elapsed(start.elapsed());
            eprintln!("  {} of {}: {fault}\n    {} ({took})", number + 1, faults.len(), shown(&verdict));
            if verdict == Verdict::Missed {
                missed.push(fault);
            }
        }
        Ok(missed)
    }

    /// Runs the groups of checks that the text serves first, then all.
    fn verdict(&mut self, places: &[usize], text: &str, name: &str) -> Outcome<Verdict> {
        let program = self.image.write(places, text)?.to_owned();
        for suite in self.backend.suites {
            for group in groups(name).iter().chain(&[""]) {
                let verdict = self.runs(&program, &format!("{suite}{group}"))?;
                if verdict != Verdict::Missed {
                    return Ok(verdict);
                }
            }
        }
        Ok(Verdict::Missed)
    }

    fn runs(&self, program: &Path, filter: &str) -> Outcome<Verdict> {
        let mut command = Command::new(program);
        command.current_dir(self.backend.folder()).env("CARGO_MANIFEST_DIR", self.backend.folder());
        command.args(["--test-threads=6", filter]).stdin(Stdio::null());
        self.servers.export(&mut command);
        watch(&mut command)
    }
}

/// Runs a program of tests until one has failed.
fn watch(command: &mut Command) -> Outcome<Verdict> {
    let line = step::spell(command);
    let failed = |error: std::io::Error| Failure::new(format!("{line}: {error}"), "see that it can be run");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map_err(failed)?;
    let output = child.stdout.take();
    let (sender, lines) = mpsc::channel();
    let reader = thread::spawn(move || {
        let lines =
            output.into_iter().flat_map(|output| BufReader::new(output).lines().map_while(Result::ok));
        for line in lines {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let deadline = Instant::now() + PATIENCE;
    let verdict = loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if let Some(name) = failed_test(&line) {
                    break Some(Verdict::Caught(name.to_owned()));
                }
            }
            Err(RecvTimeoutError::Timeout) => break Some(Verdict::Hangs),
            Err(RecvTimeoutError::Disconnected) => break None,
        }
    };
    drop(lines);
    if verdict.is_some() {
        child.kill().map_err(failed)?;
    }
    let status = child.wait().map_err(failed)?;
    // It ends with the output that it reads.
    let _ = reader.join();
    Ok(verdict.unwrap_or_else(|| match status.success() {
        true => Verdict::Missed,
        false => Verdict::Caught(format!("the program ({status})")),
    }))
}

/// `dequeue::a_check` of `test dequeue::a_check ... FAILED`.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix("FAILED")?.split(" ... ").next().map(str::trim_end)
}

/// Groups of checks that are likely to notice a fault in a text of this name.
fn groups(name: &str) -> &'static [&'static str] {
    const GROUPS: [(&str, &[&str]); 22] = [
        ("dequeue", &["dequeue", "order", "limits", "fifo", "rate", "pause"]),
        ("lease", &["dequeue"]),
        ("pick", &["dequeue", "order"]),
        ("head", &["order", "dequeue", "fifo"]),
        ("turns", &["order"]),
        ("limit", &["limits", "rate", "fifo"]),
        ("bucket", &["rate"]),
        ("enqueue", &["enqueue", "time"]),
        ("settle", &["settle", "stale", "backoff"]),
        ("finish", &["settle", "list"]),
        ("complete", &["settle"]),
        ("heartbeat", &["heartbeat"]),
        ("reclaim", &["reclaim", "backoff"]),
        ("overdue", &["reclaim", "receipts"]),
        ("redrive", &["redrive"]),
        ("prune", &["prune"]),
        ("forget", &["prune"]),
        ("stats", &["stats"]),
        ("facts", &["explain", "next"]),
        ("jobs", &["list", "page", "selection"]),
        ("history", &["list", "page", "selection"]),
        ("polic", &["policy", "pause"]),
    ];
    let stem = name.rsplit('/').next().unwrap_or(name);
    GROUPS.iter().find(|(part, _)| !stem.is_empty() && stem.contains(part)).map_or(&[], |(_, groups)| groups)
}

fn shown(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Caught(by) => format!("caught by {by}"),
        Verdict::Hangs => "caught: the suite did not end".to_owned(),
        Verdict::Missed => "MISSED".to_owned(),
    }
}

fn conclude(backend: &Backend, faults: &[Fault], missed: &[&Fault]) -> Outcome {
    eprintln!("{}: {} faults tried, {} missed", backend.name, faults.len(), missed.len());
    if missed.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = missed.iter().map(|fault| format!("  {fault}")).collect();
    Err(Failure::new(
        format!("no check notices\n{}", lines.join("\n")),
        format!("write the check, or say in {} why nobody could notice", accepted::FILE),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> Verdict {
        watch(Command::new("sh").args(["-c", text])).unwrap()
    }

    #[test]
    fn the_first_check_that_fails_catches_a_fault() {
        let caught = |by: &str| Verdict::Caught(by.to_owned());
        assert_eq!(
            script("echo 'test a::b ... ok'; echo 'test a::c ... FAILED'; exec cat /dev/zero"),
            caught("a::c")
        );
        assert_eq!(script("echo 'test a::b ... ok'"), Verdict::Missed);
        assert!(matches!(script("exit 3"), Verdict::Caught(by) if by.contains("the program")));
    }

    #[test]
    fn a_text_serves_some_groups_first() {
        assert_eq!(groups("queries/settle_one_v2.sql"), ["settle", "stale", "backoff"]);
        assert!(groups("migrations/0001_queue.sql").is_empty() && groups("").is_empty());
    }
}
