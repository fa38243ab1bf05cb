//! The one thread that writes.
//!
//! SQLite has one writer at a time, whatever one does. So this store has one, which takes what is there to be done, does
//! each operation in a savepoint of its own, and commits all of it at once: the disk is waited for once, not once for
//! each. Nobody is answered before the commit. An operation is done to its end, whether or not somebody still waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use diesel::sqlite::SqliteConnection;
use leasehold_core::Result;

use crate::clock::Clock;
use crate::error::Failure;
use crate::log::Log;
use crate::session::Session;
use crate::sql::Statements;
use crate::statement::Statement;
use crate::task::{End, Task, task};
use crate::tx::lane::Lane;
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
    sender: Sender<Request>,
    patience: Duration,
}

struct Request {
    deadline: Instant,
    task: Box<dyn Task>,
}

impl Writer {
    /// Starts the thread. An operation waits up to `patience` for the lock.
    pub(crate) fn start(
        mut conn: SqliteConnection,
        sql: Arc<Statements>,
        clock: Clock,
        hub: Arc<Hub>,
        patience: Duration,
        log: Option<Log>,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let lane = Lane::of(&mut conn);
        let waiting = VecDeque::new();
        let thread = Thread { conn, sql, clock, hub, lane, log, receiver, waiting, contended: None };
        std::thread::Builder::new().name("leasehold-writer".to_owned()).spawn(|| thread.run())?;
        Ok(Self { sender, patience })
    }

    /// Does `work` in a transaction.
    pub(crate) async fn run<T, W>(&self, operation: &'static str, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(&mut Session<'_>) -> Result<T, Failure> + Send + 'static,
    {
        let (task, answer) = task(operation, work);
        // If the thread is gone the task is dropped, and the answer says so.
        drop(self.sender.send(Request { deadline: Instant::now() + self.patience, task }));
        answer.get().await
    }
}

struct Thread {
    conn: SqliteConnection,
    sql: Arc<Statements>,
    clock: Clock,
    hub: Arc<Hub>,
    lane: Arc<Lane>,
    /// None for a database in memory.
    log: Option<Log>,
    receiver: Receiver<Request>,
    waiting: VecDeque<Request>,
    /// When somebody else was last met holding the lock.
    contended: Option<Instant>,
}

impl Thread {
    fn run(mut self) {
        while let Some(request) = self.await_request() {
            self.waiting.extend(request);
            while !self.waiting.is_empty() {
                self.group();
                self.keep_log_short();
            }
            self.keep_log_short();
        }
    }

    /// Waits for the next request, or until there is something to look after. `None` if there will be none any more.
    fn await_request(&mut self) -> Option<Option<Request>> {
        let Some(at) = self.log.as_ref().and_then(Log::next_look) else {
            return self.receiver.recv().ok().map(Some);
        };
        match self.receiver.recv_timeout(at.saturating_duration_since(Instant::now())) {
            Ok(request) => Some(Some(request)),
            Err(RecvTimeoutError::Timeout) => Some(None),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    fn keep_log_short(&mut self) {
        if let Some(log) = &mut self.log {
            log.keep_short(&mut self.conn);
        }
    }

    /// Does what is there to be done, in one transaction.
    fn group(&mut self) {
        match self.begin() {
            Ok(true) => {}
            Ok(false) => return,
            Err(failure) => {
                let end = End::NotDone(failure.words());
                self.receive();
                return self.waiting.drain(..).for_each(|request| request.task.answer(&end));
            }
        }
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
    fn work(&mut self) -> (Vec<Box<dyn Task>>, Vec<String>, End) {
        let started = Instant::now();
        let (mut tasks, mut wake) = (Vec::new(), Vec::new());
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
        let end = self.commit();
        (tasks, wake, end)
    }

    fn commit(&mut self) -> End {
        match self.say("COMMIT") {
            Ok(()) => End::Committed,
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
        self.waiting.pop_front().or_else(|| self.receiver.try_recv().ok())
    }

    fn receive(&mut self) {
        self.waiting.extend(self.receiver.try_iter());
    }

    fn say(&mut self, text: &str) -> Result<(), Failure> {
        Statement::<()>::new(text, Vec::new()).count(&mut self.conn).map(drop)
    }
}

fn jitter(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64())
}
