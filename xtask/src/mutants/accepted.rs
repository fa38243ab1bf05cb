//! Faults that no check has to notice, with the reason: `survivors.txt` beside the `Cargo.toml` of a backend.
//!
//! An entry is a file and a fault, or `*` for every fault of the file, and in the next lines, indented, why no user could notice it or
//! which other test does.

use std::path::Path;

use super::text::{Fault, Text};
use crate::step::{Failure, Outcome};

pub(super) const FILE: &str = "survivors.txt";

/// The entries of one list.
#[derive(Debug, Default)]
pub(super) struct Accepted(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    file: String,
    fault: String,
    reason: String,
}

impl Accepted {
    /// Reads the list of the backend in `folder`; none is an empty one.
    pub(super) fn read(folder: &Path) -> Outcome<Self> {
        match std::fs::read_to_string(folder.join(FILE)) {
            Ok(text) => Self::parse(&text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(Failure::new(format!("{FILE} cannot be read: {error}"), "see its rights")),
        }
    }

    fn parse(text: &str) -> Outcome<Self> {
        let mut entries: Vec<Entry> = Vec::new();
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            match (line.strip_prefix("    "), line.split_once(": "), entries.last_mut()) {
                (Some(reason), _, Some(entry)) => entry.reason.push_str(reason),
                (None, Some((file, fault)), _) => {
                    entries.push(Entry { file: file.into(), fault: fault.into(), reason: String::new() });
                }
                _ => return Err(malformed(line)),
            }
        }
        match entries.iter().find(|entry| entry.reason.is_empty()) {
            Some(entry) => Err(malformed(&format!("{}: {}", entry.file, entry.fault))),
            None => Ok(Self(entries)),
        }
    }

    pub(super) fn has(&self, fault: &Fault) -> bool {
        self.0.iter().any(|entry| entry.is(&fault.file, &fault.change.what))
    }

    /// Entries that speak of a fault which is not there any more.
    pub(super) fn stale<'a>(&'a self, texts: &[Text], faults: &[Fault]) -> Vec<&'a str> {
        let is_there = |entry: &Entry| {
            texts.iter().all(|text| text.name != entry.file)
                || faults.iter().any(|fault| entry.is(&fault.file, &fault.change.what))
        };
        self.0.iter().filter(|entry| !is_there(entry)).map(|entry| entry.fault.as_str()).collect()
    }
}

impl Entry {
    fn is(&self, file: &str, what: &str) -> bool {
        self.file == file && (self.fault == "*" || self.fault == what)
    }
}

fn malformed(line: &str) -> Failure {
    Failure::new(
        format!("an entry of {FILE} is not understood: {line}"),
        "write `file: fault`, and the reason in the next line behind four spaces",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::text::Backend;

    #[test]
    fn an_entry_is_a_file_a_fault_and_a_reason() {
        let list = Accepted::parse("# why\n\nqueries/a.sql: drop `b`\n    Nobody\n    sees it.\n").unwrap();
        assert!(list.0[0].is("queries/a.sql", "drop `b`") && !list.0[0].is("queries/a.sql", "drop `c`"));
        assert!(Accepted::parse("queries/a.sql: drop `b`\n").is_err());
        assert!(Accepted::parse("    a reason alone\n").is_err());
    }

    #[test]
    fn every_entry_speaks_of_a_fault_that_is_there() {
        for name in ["sqlite", "postgres", "mysql", "redis"] {
            let backend = Backend::named(name).unwrap();
            let texts = backend.texts("").unwrap();
            let faults: Vec<Fault> = texts.iter().flat_map(|text| backend.faults(text)).collect();
            let list = Accepted::read(&backend.folder()).unwrap();
            assert_eq!(list.stale(&texts, &faults), Vec::<&str>::new(), "{name}");
        }
    }
}
