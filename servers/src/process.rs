//! Processes of this machine, by their number. Only those that we have started are ever signalled.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::Error;
use crate::command;

const STEP: Duration = Duration::from_millis(5);

/// Sends the signal of that name, without `SIG`. The shell does it: a small image has no program `kill`.
pub(crate) fn signal(pid: u32, name: &str) -> Result<(), Error> {
    command::run(Command::new("sh").args(["-c", &format!("kill -s {name} {pid}")])).map(drop)
}

/// Waits until `done`, but no longer than `limit`; says whether it came to that.
pub(crate) fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if done() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        thread::sleep(STEP);
    }
}

/// Whether the process is stopped.
pub(crate) fn is_stopped(pid: u32) -> bool {
    status(pid).is_some_and(|status| status.state == 'T')
}

/// Whether the process does nothing any more: it is gone, or all that is left is its entry.
pub(crate) fn is_dead(pid: u32) -> bool {
    status(pid).is_none_or(|status| matches!(status.state, 'Z' | 'X'))
}

/// The processes that `parent` has started.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| status(*pid).is_some_and(|status| status.parent == parent)).collect()
}

#[derive(Debug, PartialEq, Eq)]
struct Status {
    state: char,
    parent: u32,
}

fn status(pid: u32) -> Option<Status> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The line is `pid (name) state parent …`, and the name may have anything in it.
fn parse(stat: &str) -> Option<Status> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut words = rest.split(' ');
    Some(Status { state: words.next()?.chars().next()?, parent: words.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_confuses_nobody() {
        assert_eq!(parse("7 (a) b) S 3 7 7 0"), Some(Status { state: 'S', parent: 3 }));
        assert_eq!(parse(""), None);
    }

    #[test]
    fn a_child_is_seen_from_its_start_to_its_death() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(children(std::process::id()).contains(&child.id()));
        assert!(!is_dead(child.id()));
        signal(child.id(), "KILL").unwrap();
        assert!(wait_until(Duration::from_secs(5), || is_dead(child.id())));
        child.wait().unwrap();
    }
}
