//! Packages of Debian: installed if we are root, or unpacked into a directory of our own.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::Error;
use crate::account::Account;
use crate::command;

const UNPACK: &str = include_str!("unpack-debian.sh");
const CLUSTER_SETTINGS: &str = "/etc/postgresql-common/createcluster.conf";

/// Installs a package of this machine's Debian.
pub(super) fn install(package: &str) -> Result<(), Error> {
    if !Account::ours()?.is_root() || !command::exists("apt-get") {
        return Err(Error::new(format!(
            "`apt-get install {package}` is needed, which only root can do on Debian"
        )));
    }
    update_if_never_done()?;
    let mut install = apt_get();
    // Somebody else may be installing at the moment.
    install.args(["-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Options::=--force-confold"]);
    command::run(install.args(["install", "--yes", "--no-install-recommends", package])).map(drop)
}

/// Keeps Debian's Postgres from making and starting a server for everybody when it is installed. Where its settings
/// exist already, their owner has decided.
pub(super) fn without_a_cluster() -> Result<(), Error> {
    let path = Path::new(CLUSTER_SETTINGS);
    let (Some(directory), true) = (path.parent(), Account::ours()?.is_root() && !path.exists()) else {
        return Ok(());
    };
    let unusable = || Error::io(format!("{CLUSTER_SETTINGS} cannot be written"));
    fs::create_dir_all(directory).map_err(unusable())?;
    fs::write(path, "create_main_cluster = false\n").map_err(unusable())
}

/// Unpacks `package` (or several, with spaces between) of some suite of Debian, with the libraries that it needs, into `directory`. Nothing is
/// installed, and nobody needs to be root. `bin/` there has a script for `program`, which runs it with its libraries.
pub(super) fn unpack(suite: &str, package: &str, program: &Path, directory: &Path) -> Result<(), Error> {
    if !command::exists("apt-get") || !command::exists("dpkg-deb") {
        return Err(Error::new(format!(
            "{package} comes from packages of Debian, which is not what this machine runs"
        )));
    }
    if Account::ours()?.is_root() {
        update_if_never_done()?;
    }
    let mut script = Command::new("sh");
    script.args(["-c", UNPACK, "unpack-debian.sh", suite, package]).arg(program).arg(directory);
    command::run(&mut script).map(drop)
}

/// A fresh image of Debian knows no packages at all.
fn update_if_never_done() -> Result<(), Error> {
    if command::run(apt_get().arg("indextargets"))?.is_empty() {
        command::run(apt_get().arg("update"))?;
    }
    Ok(())
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").arg("--quiet");
    command
}
