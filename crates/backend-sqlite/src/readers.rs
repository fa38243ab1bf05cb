//! The threads that read, beside the writer and each other.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use diesel::sqlite::SqliteConnection;
use leasehold_core::Result;

use crate::clock::Clock;
use crate::error::Failure;
use crate::files::Files;
use crate::gate::Gate;
use crate::session::Session;
use crate::sql::Statements;
use crate::statement::Statement;
use crate::task::{End, Task, task};

/// The way to the readers. They end when it is dropped.
pub(crate) struct Readers {
    sender: Sender<Box<dyn Task>>,
}

impl Readers {
    /// Starts a thread for each connection.
    pub(crate) fn start(
        connections: Vec<SqliteConnection>,
        sql: &Arc<Statements>,
        clock: &Clock,
        gate: &Arc<Gate>,
        files: &Arc<Files>,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        for conn in connections {
            let (receiver, sql, clock) = (Arc::clone(&receiver), Arc::clone(sql), clock.clone());
            let (gate, files) = (Arc::clone(gate), Arc::clone(files));
            std::thread::Builder::new()
                .name("leasehold-reader".to_owned())
                .spawn(move || serve(conn, &sql, &clock, &gate, &files, &receiver))?;
        }
        Ok(Self { sender })
    }

    /// Does `work` on one snapshot of the database.
    pub(crate) async fn run<T, W>(&self, operation: &'static str, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(&mut Session<'_>) -> Result<T, Failure> + Send + 'static,
    {
        let (task, answer) = task(operation, work);
        drop(self.sender.send(task));
        answer.get().await
    }
}

fn serve(
    mut conn: SqliteConnection,
    sql: &Statements,
    clock: &Clock,
    gate: &Gate,
    files: &Files,
    receiver: &Mutex<Receiver<Box<dyn Task>>>,
) {
    loop {
        let next = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(mut task) = next else {
            return;
        };
        if let Err(moved) = files.check() {
            task.answer(&End::NotDone(moved.to_string()));
            continue;
        }
        let pass = gate.pass();
        let end = match read(&mut conn, sql, clock, &mut *task) {
            Ok(()) => End::Committed,
            Err(failure) => End::NotDone(failure.words()),
        };
        drop(pass);
        task.answer(&end);
    }
}

fn read(
    conn: &mut SqliteConnection,
    sql: &Statements,
    clock: &Clock,
    task: &mut dyn Task,
) -> Result<(), Failure> {
    Statement::<()>::new("BEGIN", Vec::new()).count(conn)?;
    let run = task.run(&mut Session::new(conn, sql, clock));
    let ended = Statement::<()>::new("ROLLBACK", Vec::new()).count(conn);
    run.and(ended.map(drop))
}
