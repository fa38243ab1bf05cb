//! Somebody outside our process who stops a server and removes its directory when we cannot: a test that is killed, or
//! ends with a server in a static, drops nothing.
//!
//! It is a shell that reads from a pipe which only we can write to. However we end, the system closes the pipe.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::Error;

const SCRIPT: &str = include_str!("guard.sh");

/// Watches over one directory and the server in it. Dropped, it removes the directory; the server is to be stopped by
/// then.
#[derive(Debug)]
pub(crate) struct Guard {
    shell: Child,
    /// `None` only while it is dropped.
    pipe: Option<ChildStdin>,
}

impl Guard {
    /// From now on `directory` will be removed. `signal` is how the server is asked to end.
    pub(crate) fn new(directory: PathBuf, signal: &str) -> Result<Self, Error> {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "guard.sh"]).arg(directory).arg(signal);
        // Not in our group: who interrupts us does not interrupt the clearing away. And not in anybody's way: a pipe
        // that we print to is not kept open.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut shell = command.current_dir("/").spawn().map_err(Error::io("sh could not be started"))?;
        let pipe = shell.stdin.take();
        Ok(Self { shell, pipe })
    }

    /// Says which process is the server now.
    pub(crate) fn watch(&mut self, server: Option<u32>) -> Result<(), Error> {
        let line = server.map_or_else(String::new, |pid| pid.to_string());
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        writeln!(pipe, "{line}").map_err(Error::io("the guard of the server is gone"))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.pipe = None;
        // Nothing can be done about an error here, and nothing hangs on it but a directory.
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::thread;

    use super::*;
    use crate::{account::Account, directory};

    /// For the guard it is the same whether its owner drops it or dies: the pipe is closed.
    #[test]
    fn the_server_and_its_directory_end_with_their_owner() {
        let directory = directory::fresh("guard", Account::of_servers().unwrap()).unwrap();
        let mut guard = Guard::new(directory.clone(), "TERM").unwrap();
        let mut server = Command::new("sleep").arg("60").spawn().unwrap();
        guard.watch(Some(server.id())).unwrap();
        let server = thread::spawn(move || server.wait().unwrap());

        drop(guard);
        assert_eq!(server.join().unwrap().signal(), Some(15));
        assert!(!directory.exists());
    }
}
