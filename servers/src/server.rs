//! One server: a process that we have started, and its directory.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::Error;
use crate::account::Account;
use crate::directory;
use crate::guard::Guard;
use crate::log::Log;
use crate::process::{self, wait_until};

/// A server that was asked to end may take so long, then it is killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// A process with a directory of its own, both gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    /// `None` while it is down.
    child: Option<Child>,
    signal: &'static str,
    account: Account,
    directory: PathBuf,
    log: Log,
    guard: Guard,
}

impl Server {
    /// A server that is not running yet. `signal` asks it to end at once but in good order.
    pub(crate) fn new(name: &str, signal: &'static str) -> Result<Self, Error> {
        let account = Account::of_servers()?;
        let directory = directory::fresh(name, account)?;
        let guard = Guard::new(directory.clone(), signal)?;
        let log = Log::new(&directory);
        Ok(Self { child: None, signal, account, directory, log, guard })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// `program` as the account and in the directory of the server.
    pub(crate) fn command(&self, program: &Path) -> Result<Command, Error> {
        let mut command = self.account.command(program)?;
        command.current_dir(&self.directory).stdin(Stdio::null());
        Ok(command)
    }

    /// Writes a file for the server to read.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf, Error> {
        let path = self.directory.join(name);
        directory::write(&path, text, self.account).map(|()| path)
    }

    /// Starts `command` as the server, and does not wait until it answers.
    pub(crate) fn spawn(&mut self, mut command: Command) -> Result<(), Error> {
        self.stop()?;
        self.log.attach(&mut command)?;
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().map_err(Error::io(format!("{name} could not be started")))?;
        self.guard.watch(Some(child.id()))?;
        self.child = Some(child);
        Ok(())
    }

    /// Whether it runs. One that ended by itself counts as down from now on.
    pub(crate) fn is_up(&mut self) -> bool {
        let ended = self.child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None)));
        if ended {
            self.child = None;
            // If the guard is gone, there is nobody left to be misled.
            let _ = self.guard.watch(None);
        }
        self.child.is_some()
    }

    /// Asks the server to end, and kills it if it does not.
    pub(crate) fn stop(&mut self) -> Result<(), Error> {
        let Some(pid) = self.pid() else { return Ok(()) };
        // It may have ended by itself in this very moment.
        let _ = process::signal(pid, self.signal);
        if wait_until(PATIENCE, || !self.is_up()) { Ok(()) } else { self.kill() }
    }

    /// Ends the server and all its processes at once, as a crash would. When this returns, none of them is left.
    pub(crate) fn kill(&mut self) -> Result<(), Error> {
        if !self.is_up() {
            return Ok(());
        }
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let pid = child.id();
        // While the parent is stopped it starts no more children and buries none, so their numbers stay theirs.
        process::signal(pid, "STOP")?;
        wait_until(PATIENCE, || process::is_stopped(pid));
        let children = process::children(pid);
        for child in &children {
            // Those that are dead already may refuse.
            let _ = process::signal(*child, "KILL");
        }
        let all_dead = wait_until(PATIENCE, || children.iter().all(|child| process::is_dead(*child)));
        child.kill().map_err(Error::io("the server could not be killed"))?;
        child.wait().map_err(Error::io("the end of the server could not be awaited"))?;
        self.guard.watch(None)?;
        if all_dead {
            Ok(())
        } else {
            Err(self.log.explain("processes of the killed server are still alive"))
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // What is left then, the guard sees to.
        let _ = self.stop();
    }
}
