//! What a server says about itself.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;
use crate::command::last_lines;

const LINES: usize = 30;

/// The file that a server's standard output and standard error go to.
#[derive(Debug)]
pub(crate) struct Log(PathBuf);

impl Log {
    pub(crate) fn new(directory: &Path) -> Self {
        Self(directory.join("log"))
    }

    /// Lets `command` write here, after what is there already.
    pub(crate) fn attach(&self, command: &mut Command) -> Result<(), Error> {
        let unusable = || Error::io(format!("{} cannot be written", self.0.display()));
        let file = File::options().create(true).append(true).open(&self.0).map_err(unusable())?;
        command.stderr(file.try_clone().map_err(unusable())?).stdout(file);
        Ok(())
    }

    /// Where the next line will stand; for [`Log::since`].
    pub(crate) fn len(&self) -> usize {
        self.read().len()
    }

    /// What was said after the log was `start` bytes long.
    pub(crate) fn since(&self, start: usize) -> String {
        self.read().get(start..).unwrap_or_default().to_owned()
    }

    /// `what` went wrong, and this is what the server said last.
    pub(crate) fn explain(&self, what: &str) -> Error {
        Error::new(format!("{what}; the end of its log:\n{}", last_lines(&self.read(), LINES)))
    }

    fn read(&self) -> String {
        fs::read(&self.0).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }
}
