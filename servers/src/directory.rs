//! A directory for one server.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use crate::Error;
use crate::account::Account;
use crate::place;

/// More leftovers than this of processes with our id, and something else is wrong.
const TRIES: u32 = 10_000;

/// Makes a directory that nobody else uses and only `owner` may read.
pub(crate) fn fresh(name: &str, owner: Account) -> Result<PathBuf, Error> {
    let run = place::run()?;
    let ours = std::process::id();
    for number in 0..TRIES {
        let path = run.join(format!("{name}-{ours}-{number}"));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return owner.own(&path).map(|()| path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io(format!("{} cannot be made", path.display()))(error)),
        }
    }
    Err(Error::new(format!("{} is full of leftovers; remove it", run.display())))
}

/// Writes a file into such a directory.
pub(crate) fn write(path: &std::path::Path, text: &str, owner: Account) -> Result<(), Error> {
    fs::write(path, text).map_err(Error::io(format!("{} cannot be written", path.display())))?;
    owner.own(path)
}
