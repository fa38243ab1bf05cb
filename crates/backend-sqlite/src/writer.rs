//! The one thread that writes.
//!
//! SQLite has one writer at a time, whatever one does. So this store has one, which takes what is there to be done, does
//! each operation in a savepoint of its own, and commits all of it at once: the disk is waited for once, not once for
//! each. Nobody is answered before the commit. An operation is done to its end, whether or not somebody still waits.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use diesel::sqlite::SqliteConnection;
use leasehold_core::Result;

use crate::clock::Clock;
use crate::ears::{Ears, Watch};
use crate::error::Failure;
use crate::files::Files;
use crate::hints::{Hints, hint};
use crate::log::Log;
use crate::looks::{Looks, Source};
use crate::session::Session;
use crate::sql::Statements;
use crate::statement::Statement;
use crate::task::{End, Task, task};
use crate::tx::lane::Lane;
use crate::watch::Bell;
use leasehold_sql::Subscribers as Hub;

/// A group of operations is committed when it has so many, or has taken so long.
const GROUP: usize = 256;
const GROUP_TIME: Duration = Duration::from_millis(20);

/// How long to wait before asking again for a lock that somebody else holds: doubled up to the second.
const PAUSE: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(4));

/// For how long other processes are believed to be waiting for the lock, once one was met. As long as they are, they are let in
/// between two groups.
const CONTENDED: Duration = Duration::from_secs(1);
const COURTESY: Duration = Duration::from_millis(1);

/// The way to the writer. It ends when the last of these is dropped and everything is done.
pub(crate) struct Writer {
    sender: Sender<Message>,
    patience: Duration,
    ears: Option<Ears>,
}

/// What the writer is told.
pub(crate) enum Message {
    /// To do something.
    Do(Request),
    /// That something was written to the file.
    Look,
    /// How it hears of that.
    Listen(Source),
}

pub(crate) struct Request {
    deadline: Instant,
    task: Box<dyn Task>,
}

/// What the writer works with beside its connection.
pub(crate) struct Kit {
    pub(crate) sql: Arc<Statements>,
    pub(crate) clock: Clock,
    pub(crate) hub: Arc<Hub>,
    /// How long an operation waits for the lock.
    pub(crate) patience: Duration,
    /// None for a database in memory.
    pub(crate) file: Option<File>,
}

/// What is done about the file beside writing to it.
pub(crate) struct File {
    pub(crate) log: Log,
    pub(crate) files: Arc<Files>,
    /// The write-ahead log.
    pub(crate) path: PathBuf,
    pub(crate) watch: Watch,
}

impl Writer {
    /// Starts the thread.
    pub(crate) fn start(mut conn: SqliteConnection, kit: Kit) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let (bell, rung) = Bell::new(sender.clone());
        let (ears, file) = match kit.file {
            None => (None, None),
            Some(File { log, files, path, watch }) => {
                let hints = Hints::from_now_on(&mut conn, &kit.sql);
                let ears = Ears::new(path, watch, bell, sender.clone());
                (Some(ears), Some(Beside { log, files, hints, looks: Looks::new(), rung }))
            }
        };
        let lane = Lane::of(&mut conn);
        let Kit { sql, clock, hub, patience, .. } = kit;
        let waiting = VecDeque::new();
        let thread = Thread { conn, sql, clock, hub, lane, file, receiver, waiting, contended: None };
        std::thread::Builder::new().name("leasehold-writer".to_owned()).spawn(|| thread.run())?;
        Ok(Self { sender, patience, ears })
    }

    /// Does `work` in a transaction.
    pub(crate) async fn run<T, W>(&self, operation: &'static str, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(&mut Session<'_>) -> Result<T, Failure> + Send + 'static,
    {
        let (task, answer) = task(operation, work);
        // If the thread is gone the task is dropped, and the answer says so.
        drop(self.sender.send(Message::Do(Request { deadline: Instant::now() + self.patience, task })));
        answer.get().await
    }

    /// Hears of the commits of other connections from now on.
    pub(crate) fn listen(&self) {
        if let Some(ears) = &self.ears {
            ears.open();
        }
    }
}

struct Thread {
    conn: SqliteConnection,
    sql: Arc<Statements>,
    clock: Clock,
    hub: Arc<Hub>,
    lane: Arc<Lane>,
    /// None for a database in memory.
    file: Option<Beside>,
    receiver: Receiver<Message>,
    waiting: VecDeque<Request>,
    /// When somebody else was last met holding the lock.
    contended: Option<Instant>,
}

/// What the thread does beside writing.
struct Beside {
    log: Log,
    files: Arc<Files>,
    hints: Hints,
    looks: Looks,
    /// Set when something was written to the file.
    rung: Arc<AtomicBool>,
}

impl Thread {
    fn run(mut self) {
        while let Some(message) = self.next_message() {
            message.into_iter().for_each(|message| self.told(message));
            while !self.waiting.is_empty() {
                self.group();
                self.look_after_the_log();
            }
            self.look();
            self.look_after_the_log();
        }
    }

    /// Waits for the next message, or until there is something to look after. `None` if there will be none any more.
    fn next_message(&mut self) -> Option<Option<Message>> {
        let times = self.file.iter().flat_map(|file| [file.log.next_look(), file.looks.next()]);
        let Some(at) = times.flatten().min() else {
            return self.receiver.recv().ok().map(Some);
        };
        match self.receiver.recv_timeout(at.saturating_duration_since(Instant::now())) {
            Ok(message) => Some(Some(message)),
            Err(RecvTimeoutError::Timeout) => Some(None),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    fn told(&mut self, message: Message) {
        match (message, &mut self.file) {
            (Message::Do(request), _) => self.waiting.push_back(request),
            (Message::Look, Some(file)) => {
                file.rung.store(false, Ordering::Release);
                file.looks.event(Instant::now());
            }
            (Message::Listen(source), Some(file)) => {
                file.looks.set(source);
                file.looks.event(Instant::now());
            }
            (Message::Look | Message::Listen(_), None) => {}
        }
    }

    /// Looks for hints of other connections, if it is time, and passes them on.
    fn look(&mut self) {
        let now = Instant::now();
        let Some(file) = self.file.as_mut().filter(|file| file.looks.is_due(now)) else {
            return;
        };
        if self.hub.is_empty() {
            return file.looks.stop();
        }
        let (names, found) = file.hints.of_others(&mut self.conn, &self.sql);
        self.hub.wake(names.iter().map(String::as_str));
        file.looks.looked(now, found);
    }

    fn look_after_the_log(&mut self) {
        if let Some(file) = &mut self.file {
            file.log.keep_short(&mut self.conn);
        }
    }

    /// Does what is there to be done, in one transaction.
    fn group(&mut self) {
        if let Some(Err(moved)) = self.file.as_ref().map(|file| file.files.check()) {
            return self.refuse(moved.to_string());
        }
        match self.begin() {
            Ok(true) => {}
            Ok(false) => return,
            Err(failure) => return self.refuse(failure.words()),
        }
        self.pass_on_hints();
        let (tasks, wake, end) = self.work();
        if matches!(end, End::Committed) {
            self.hub.wake(wake.iter().map(String::as_str));
        }
        tasks.into_iter().for_each(|task| task.answer(&end));
        self.receive();
        let contended = self.contended.is_some_and(|met| met.elapsed() < CONTENDED);
        if !self.waiting.is_empty() && !self.lane.make_way() && contended {
            std::thread::sleep(jitter(COURTESY));
        }
    }

    /// Answers everybody who waits that nothing was done.
    fn refuse(&mut self, words: String) {
        let end = End::NotDone(words);
        self.receive();
        self.waiting.drain(..).for_each(|request| request.task.answer(&end));
    }

    /// Opens a transaction. False if everybody has given up waiting for it.
    fn begin(&mut self) -> Result<bool, Failure> {
        let mut pause = PAUSE.0;
        loop {
            match self.say("BEGIN IMMEDIATE") {
                Ok(()) => return Ok(true),
                Err(failure) if failure.is_busy() => {
                    self.contended = Some(Instant::now());
                    self.receive();
                    self.give_up(failure);
                }
                Err(failure) => return Err(failure),
            }
            if self.waiting.is_empty() {
                return Ok(false);
            }
            std::thread::sleep(jitter(pause));
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Answers those who have waited for too long.
    fn give_up(&mut self, failure: Failure) {
        let now = Instant::now();
        if self.waiting.iter().all(|request| request.deadline > now) {
            return;
        }
        let end = End::NotDone(failure.words());
        let (late, waiting) = self.waiting.drain(..).partition(|request: &Request| request.deadline <= now);
        self.waiting = waiting;
        let late: VecDeque<Request> = late;
        late.into_iter().for_each(|request| request.task.answer(&end));
    }

    /// Runs tasks until there are no more, or enough, and commits.
    fn work(&mut self) -> (Vec<Box<dyn Task>>, BTreeSet<String>, End) {
        let started = Instant::now();
        let (mut tasks, mut wake) = (Vec::new(), BTreeSet::new());
        while tasks.len() < GROUP && started.elapsed() < GROUP_TIME {
            let Some(Request { mut task, .. }) = self.next() else {
                break;
            };
            let mut session = Session::new(&mut self.conn, &self.sql, &self.clock);
            let run = task.run(&mut session);
            wake.extend(session.wake);
            tasks.push(task);
            if let Err(failure) = run {
                drop(self.say("ROLLBACK"));
                return (tasks, wake, End::NotDone(failure.words()));
            }
        }
        let end = self.commit(&wake);
        (tasks, wake, end)
    }

    /// Tells the process of what others have committed since the last look. The transaction has just begun, and sees all of it.
    fn pass_on_hints(&mut self) {
        if let Some(file) = self.file.as_mut().filter(|_| !self.hub.is_empty()) {
            let (names, _) = file.hints.of_others(&mut self.conn, &self.sql);
            self.hub.wake(names.iter().map(String::as_str));
        }
    }

    /// Commits, with hints at these queues for other processes.
    fn commit(&mut self, wake: &BTreeSet<String>) -> End {
        let hinted = match &self.file {
            Some(_) => hint(&mut self.conn, &self.sql, wake),
            None => Ok(None),
        };
        let hinted = match hinted {
            Ok(hinted) => hinted,
            Err(failure) => {
                drop(self.say("ROLLBACK"));
                return End::NotDone(failure.words());
            }
        };
        match self.say("COMMIT") {
            Ok(()) => {
                if let (Some(file), Some(seq)) = (&mut self.file, hinted) {
                    file.hints.committed(seq);
                }
                End::Committed
            }
            Err(failure) => {
                // It may have failed before or after the disk had it.
                drop(self.say("ROLLBACK"));
                let words = failure.words();
                if words.contains("is full") || words.contains("is locked") {
                    return End::NotDone(words);
                }
                End::Unknown(words)
            }
        }
    }

    fn next(&mut self) -> Option<Request> {
        if self.waiting.is_empty() {
            self.receive();
        }
        self.waiting.pop_front()
    }

    fn receive(&mut self) {
        while let Ok(message) = self.receiver.try_recv() {
            self.told(message);
        }
    }

    fn say(&mut self, text: &str) -> Result<(), Failure> {
        Statement::<()>::new(text, Vec::new()).count(&mut self.conn).map(drop)
    }
}

fn jitter(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64())
}
