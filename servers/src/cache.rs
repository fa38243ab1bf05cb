//! Keeps what was fetched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::Error;
use crate::command;
use crate::place;

/// One fetch at a time in this process. Other processes may fetch the same; the first to finish wins.
static FETCHING: Mutex<()> = Mutex::new(());

/// The directory `name` of the cache. If it is missing, `fill` is given an empty directory that becomes it: all or nothing.
pub(crate) fn directory(name: &str, fill: impl FnOnce(&Path) -> Result<(), Error>) -> Result<PathBuf, Error> {
    let _one = FETCHING.lock().unwrap_or_else(PoisonError::into_inner);
    let cache = place::cache()?;
    let kept = cache.join(name);
    if kept.is_dir() {
        return Ok(kept);
    }
    let draft = cache.join(format!("draft-{}-{name}", std::process::id()));
    let filled = empty(&draft).and_then(|()| fill(&draft)).and_then(|()| keep(&draft, &kept));
    // Gone if all went well. If not, the reason is worth more than what is left here.
    let _ = fs::remove_dir_all(&draft);
    filled.map(|()| kept)
}

/// A process with our id may have left something.
fn empty(draft: &Path) -> Result<(), Error> {
    let _ = fs::remove_dir_all(draft);
    fs::create_dir(draft).map_err(Error::io(format!("{} cannot be made", draft.display())))
}

fn keep(draft: &Path, kept: &Path) -> Result<(), Error> {
    // The servers' account is not always the one that fetched.
    command::run(Command::new("chmod").args(["-R", "a+rX"]).arg(draft))?;
    match fs::rename(draft, kept) {
        Err(error) if !kept.is_dir() => Err(Error::io(format!("{} cannot be kept", kept.display()))(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_filled_once_and_only_as_a_whole() {
        let name = format!("test-{}", std::process::id());
        let failed = directory(&name, |draft| {
            fs::write(draft.join("half"), "").unwrap();
            Err(Error::new("the network is down"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "the network is down");

        let fill = |draft: &Path| fs::write(draft.join("whole"), "").map_err(Error::io("no"));
        let kept = directory(&name, fill).unwrap();
        assert!(kept.join("whole").exists() && !kept.join("half").exists());

        let again = directory(&name, |_| Err(Error::new("filled twice"))).unwrap();
        assert_eq!(again, kept);
        fs::remove_dir_all(kept).unwrap();
    }
}
