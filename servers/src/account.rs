//! Who runs the servers: we ourselves, or somebody with fewer rights if we are root, since servers refuse to be root.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::Error;

/// In order of preference: the first that exists runs the servers of root.
const UNPRIVILEGED: [&str; 2] = ["postgres", "nobody"];

/// An account of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Account {
    uid: u32,
    gid: u32,
}

impl Account {
    /// Who we are.
    pub(crate) fn ours() -> Result<Self, Error> {
        let ourselves = std::fs::metadata("/proc/self").map_err(Error::io("/proc/self cannot be read"))?;
        Ok(Self { uid: ourselves.uid(), gid: ourselves.gid() })
    }

    /// Who runs the servers.
    pub(crate) fn of_servers() -> Result<Self, Error> {
        let ours = Self::ours()?;
        if !ours.is_root() {
            return Ok(ours);
        }
        let accounts =
            std::fs::read_to_string("/etc/passwd").map_err(Error::io("/etc/passwd cannot be read"))?;
        let found = UNPRIVILEGED.iter().find_map(|name| find(&accounts, name));
        found.ok_or_else(|| {
            Error::new("root cannot run servers, and there is no account `postgres` or `nobody`")
        })
    }

    pub(crate) fn is_root(self) -> bool {
        self.uid == 0
    }

    pub(crate) fn uid(self) -> u32 {
        self.uid
    }

    /// `program`, to be run by this account and in its own process group: a Ctrl-C at the terminal is for us alone.
    pub(crate) fn command(self, program: &Path) -> Result<Command, Error> {
        let mut command = Command::new(program);
        command.process_group(0);
        if self != Self::ours()? {
            command.uid(self.uid).gid(self.gid);
        }
        Ok(command)
    }

    /// Makes `path` belong to this account.
    pub(crate) fn own(self, path: &Path) -> Result<(), Error> {
        if self == Self::ours()? {
            return Ok(());
        }
        std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid))
            .map_err(Error::io(format!("{} cannot be given away", path.display())))
    }
}

/// The account `name` in the text of `/etc/passwd`.
fn find(accounts: &str, name: &str) -> Option<Account> {
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_it = fields.next() == Some(name);
        let mut numbers = fields.skip(1).map_while(|field| field.parse().ok());
        is_it.then_some(Account { uid: numbers.next()?, gid: numbers.next()? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_by_their_name() {
        let accounts = "root:x:0:0:root:/root:/bin/sh\npostgres:x:101:104:,,,:/var/lib:/bin/sh\nodd:x\n";
        assert_eq!(find(accounts, "postgres"), Some(Account { uid: 101, gid: 104 }));
        assert_eq!(find(accounts, "odd"), None);
        assert_eq!(find(accounts, "post"), None);
    }

    #[test]
    fn no_server_is_run_by_root() {
        assert!(!Account::of_servers().unwrap().is_root());
    }
}
