//! Where programs are kept and servers live: below the build directory, or below the directory for temporary files if
//! the account that runs the servers cannot get to the former.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;

use crate::Error;
use crate::account::Account;

/// What was fetched, by name.
pub(crate) fn cache() -> Result<PathBuf, Error> {
    below("cache")
}

/// The directories of running servers.
pub(crate) fn run() -> Result<PathBuf, Error> {
    below("run")
}

fn below(name: &str) -> Result<PathBuf, Error> {
    let path = root()?.join(name);
    create(&path)?;
    open_to_all(&path)?;
    Ok(path)
}

/// Chosen once: every part of one process is to find the same files.
fn root() -> Result<PathBuf, Error> {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    if let Some(root) = ROOT.get() {
        return Ok(root.clone());
    }
    let root = choose()?;
    Ok(ROOT.get_or_init(|| root).clone())
}

fn choose() -> Result<PathBuf, Error> {
    let beside_the_build = build_directory().join("servers");
    create(&beside_the_build)?;
    open_to_all(&beside_the_build)?;
    if can_enter(Account::of_servers()?, &beside_the_build)? {
        return Ok(beside_the_build);
    }
    temporary()
}

/// Cargo's, whether it stands in the workspace or elsewhere.
fn build_directory() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    workspace.join(target)
}

fn temporary() -> Result<PathBuf, Error> {
    let ours = Account::ours()?;
    let path = std::env::temp_dir().join(format!("leasehold-servers-{}", ours.uid()));
    create(&path)?;
    // Anybody may make a directory of that name there, and what is inside is run.
    let found = fs::symlink_metadata(&path).map_err(unusable(&path))?;
    if !found.is_dir() || found.uid() != ours.uid() || found.mode() & 0o022 != 0 {
        return Err(Error::new(format!("{} is not ours alone; remove it", path.display())));
    }
    open_to_all(&path)?;
    Ok(path)
}

fn create(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(unusable(path))
}

/// Whatever our umask is, the account of the servers is to find its way.
fn open_to_all(path: &Path) -> Result<(), Error> {
    fs::set_permissions(path, Permissions::from_mode(0o755)).map_err(unusable(path))
}

fn can_enter(account: Account, directory: &Path) -> Result<bool, Error> {
    let mut test = account.command(Path::new("test"))?;
    test.arg("-x").arg(directory).current_dir("/").stdin(Stdio::null());
    Ok(test.status().map_err(Error::io("test could not be started"))?.success())
}

fn unusable(path: &Path) -> impl FnOnce(std::io::Error) -> Error + use<> {
    Error::io(format!("{} cannot be used", path.display()))
}
