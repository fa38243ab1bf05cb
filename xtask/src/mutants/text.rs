//! The statements and scripts of a backend, and the faults that they can have.

use std::path::{Path, PathBuf};

use super::change::Change;
use super::{lua, sql};
use crate::step::{Failure, Outcome};
use crate::workspace;

/// A backend with statements or scripts in files of their own.
pub(super) struct Backend {
    /// What it is called on the command line, and behind `backend-`.
    pub(super) name: &'static str,
    /// Where its texts are.
    folders: &'static [&'static str],
    /// What the names of its suite's cases begin with, one kind of server after the other.
    pub(super) suites: &'static [&'static str],
    pub(super) needs_servers: bool,
    changes: fn(&str) -> Vec<Change>,
}

const QUERIES: &[&str] = &["queries", "migrations"];

const BACKENDS: [Backend; 4] = [
    Backend {
        name: "sqlite",
        folders: QUERIES,
        suites: &["memory::", "file::"],
        needs_servers: false,
        changes: sql::changes,
    },
    Backend {
        name: "postgres",
        folders: QUERIES,
        suites: &["pg15::"],
        needs_servers: true,
        changes: sql::changes,
    },
    Backend {
        name: "mysql",
        folders: QUERIES,
        suites: &["mysql9::", "mariadb::"],
        needs_servers: true,
        changes: sql::changes,
    },
    Backend {
        name: "redis",
        folders: &["scripts"],
        suites: &["redis7::", "cluster::"],
        needs_servers: true,
        changes: lua::changes,
    },
];

impl Backend {
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        BACKENDS.iter().find(|backend| backend.name == name)
    }

    pub(super) fn folder(&self) -> PathBuf {
        workspace::root().join("crates").join(format!("backend-{}", self.name))
    }

    /// Its texts whose path has `part` in it, by path.
    pub(super) fn texts(&self, part: &str) -> Outcome<Vec<Text>> {
        let mut texts = Vec::new();
        for folder in self.folders {
            let folder_path = self.folder().join(folder);
            let entries = std::fs::read_dir(&folder_path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            for entry in entries.map_err(|error| unreadable(&folder_path, &error))? {
                let path = entry.path();
                let text = std::fs::read_to_string(&path).map_err(|error| unreadable(&path, &error))?;
                texts.push(Text { name: format!("{folder}/{}", entry.file_name().to_string_lossy()), text });
            }
        }
        texts.retain(|text| text.name.contains(part));
        texts.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(texts)
    }

    /// Every fault of a text.
    pub(super) fn faults(&self, text: &Text) -> Vec<Fault> {
        let line = |change: &Change| 1 + text.text[..change.start()].matches('\n').count();
        let fault = |change: Change| Fault { file: text.name.clone(), line: line(&change), change };
        (self.changes)(&text.text).into_iter().map(fault).collect()
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{} cannot be read: {error}", path.display()), "see that the checkout is whole")
}

/// A statement, a script or a migration.
#[derive(Debug)]
pub(super) struct Text {
    /// Its path below the folder of the backend.
    pub(super) name: String,
    pub(super) text: String,
}

/// One fault of one text.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) file: String,
    line: usize,
    pub(super) change: Change,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.change.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_backend_has_texts_with_faults() {
        for backend in &BACKENDS {
            let texts = backend.texts("").unwrap_or_default();
            let faults: usize = texts.iter().map(|text| backend.faults(text).len()).sum();
            assert!(
                texts.len() > 10 && faults > 100,
                "{}: {} texts, {faults} faults",
                backend.name,
                texts.len()
            );
            for text in &texts {
                let lengths: Vec<usize> =
                    backend.faults(text).iter().map(|fault| fault.change.apply(&text.text).len()).collect();
                assert!(lengths.iter().all(|length| *length == text.text.len()), "{}", text.name);
            }
        }
        assert!(Backend::named("leasehold-worker").is_none());
    }
}
