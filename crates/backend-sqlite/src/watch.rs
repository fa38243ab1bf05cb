//! Hearing of what other connections write to the file, without asking all the time.
//!
//! In WAL mode each commit is written to the write-ahead log before it counts. Linux tells of that by inotify. One thread and one inotify instance
//! serve the whole process, and a file is watched once, however many stores are on it.
//!
//! No descriptor of the database's files is opened here: closing one would take away the locks that SQLite has on the file (POSIX).

#[cfg(target_os = "linux")]
mod inotify;

#[cfg(not(target_os = "linux"))]
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

#[cfg(target_os = "linux")]
pub(crate) use self::inotify::{Watching, watch};
use crate::writer::Message;

/// What is rung when something was written.
pub(crate) struct Bell {
    /// Whether it was rung and not answered yet.
    rung: Arc<AtomicBool>,
    sender: Sender<Message>,
}

impl Bell {
    /// A bell, and what is to be set to false when it is answered.
    pub(crate) fn new(sender: Sender<Message>) -> (Self, Arc<AtomicBool>) {
        let rung = Arc::new(AtomicBool::new(false));
        (Self { rung: Arc::clone(&rung), sender }, rung)
    }

    pub(crate) fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // If the thread has ended there is nothing to be told.
            drop(self.sender.send(Message::Look));
        }
    }
}

/// A file that is watched, until this is dropped.
#[cfg(not(target_os = "linux"))]
pub(crate) struct Watching(std::convert::Infallible);

/// Rings the bell whenever somebody writes to the file, or says why that cannot be.
#[cfg(not(target_os = "linux"))]
pub(crate) fn watch(_: &Path, _: Arc<Bell>) -> Result<Watching, String> {
    Err("files are watched on Linux only".to_owned())
}
