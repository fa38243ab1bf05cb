//! How a store hears of what other connections have committed.

use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use crate::looks::Source;
use crate::watch::{Bell, Watching, watch};
use crate::writer::Message;

/// How a store hears of what other processes, and your own transactions, have committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Watch {
    /// The system tells of each write to the file: on Linux, by inotify, and on a disk of this machine. Where that cannot be it is as
    /// [`Polling`](Self::Polling), and the log says so once.
    #[default]
    Files,
    /// The store asks SQLite: every few milliseconds after something has happened, and 20 times a second at least.
    Polling,
    /// Not at all: only this store's own operations give hints.
    Off,
}

/// The ears of one writer. They are opened when something listens for the first time.
pub(crate) struct Ears {
    /// The write-ahead log.
    path: PathBuf,
    watch: Watch,
    bell: Arc<Bell>,
    sender: Sender<Message>,
    state: Mutex<State>,
}

enum State {
    Closed,
    Open { _watching: Option<Watching> },
}

impl Ears {
    pub(crate) fn new(path: PathBuf, watch: Watch, bell: Bell, sender: Sender<Message>) -> Self {
        Self { path, watch, bell: Arc::new(bell), sender, state: Mutex::new(State::Closed) }
    }

    /// Something listens from now on. What is committed after this is heard of.
    pub(crate) fn open(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, State::Closed) {
            let (source, watching) = self.begin();
            *state = State::Open { _watching: watching };
            // If the thread has ended, so has the store.
            drop(self.sender.send(Message::Listen(source)));
        } else {
            // The writer may have stopped looking, since nothing listened, or have missed what was being written just now.
            self.bell.ring();
        }
    }

    fn begin(&self) -> (Source, Option<Watching>) {
        match self.watch {
            Watch::Off => (Source::None, None),
            Watch::Polling => (Source::Polling, None),
            Watch::Files => match watch(&self.path, Arc::clone(&self.bell)) {
                Ok(watching) => (Source::Events, Some(watching)),
                Err(reason) => {
                    let log = self.path.display();
                    tracing::warn!(%log, reason, "the file cannot be watched: jobs of other processes are looked for all the time");
                    (Source::Polling, None)
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::{Bell, Ears, Source, Watch};
    use crate::writer::Message;

    #[test]
    fn what_cannot_be_watched_is_polled() {
        for (watch, expected) in
            [(Watch::Files, Source::Polling), (Watch::Polling, Source::Polling), (Watch::Off, Source::None)]
        {
            let (sender, receiver) = channel();
            let (bell, _rung) = Bell::new(sender.clone());
            let ears = Ears::new("/no/such/file-wal".into(), watch, bell, sender);
            ears.open();
            ears.open();
            assert!(
                matches!(receiver.try_recv(), Ok(Message::Listen(source)) if source == expected),
                "{watch:?}"
            );
            assert!(matches!(receiver.try_recv(), Ok(Message::Look)), "{watch:?}");
            assert!(receiver.try_recv().is_err(), "{watch:?}");
        }
    }
}
