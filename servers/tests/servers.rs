//! The servers start, answer, crash, come back and leave nothing behind.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};

use leasehold_servers::{Mysql, MysqlFlavor, PgBouncer, Postgres, PostgresVersion, Redis, RedisVersion};

fn is_running(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn directory(server: &Postgres) -> PathBuf {
    let data = server.query("show data_directory").unwrap().unwrap();
    Path::new(&data).parent().unwrap().to_owned()
}

#[test]
fn postgres_15_speaks_german() {
    let server = Postgres::start_german(&[]).unwrap();
    let said = server.query("select 1 / 0").unwrap_err();
    let said = std::error::Error::source(&said).unwrap().to_string();
    assert!(said.contains("Division durch Null"), "{said}");
}

#[test]
fn postgres_15_survives_a_crash_with_its_data_and_its_port() {
    let server = Postgres::start(PostgresVersion::V15, &[]).unwrap();
    let url = server.url();
    server.query("create table kept as select 7 as n").unwrap();
    let (first, directory) = (server.pid().unwrap(), directory(&server));

    server.kill().unwrap();
    assert!(!is_running(first));
    assert_eq!(server.pid(), None);
    assert!(server.query("select 1").is_err());

    server.restart().unwrap();
    assert_eq!(server.query("select n from kept").unwrap().as_deref(), Some("7"));
    assert_eq!(server.url(), url);

    server.stop().unwrap();
    assert_eq!(server.pid(), None);
    server.restart().unwrap();
    assert_eq!(server.query("select n from kept").unwrap().as_deref(), Some("7"));

    let last = server.pid().unwrap();
    drop(server);
    assert!(!is_running(last));
    assert!(!directory.exists());
}

#[test]
fn postgres_18_and_its_pgbouncer_answer() {
    let server = Postgres::start(PostgresVersion::V18, &[("work_mem", "5MB")]).unwrap();
    let pgbouncer = PgBouncer::start(&server).unwrap();
    assert!(server.query("select version()").unwrap().unwrap().starts_with("PostgreSQL 18"));
    assert!(pgbouncer.query("select version()").unwrap().unwrap().starts_with("PostgreSQL 18"));

    assert_eq!(pgbouncer.query("show work_mem").unwrap().as_deref(), Some("5MB"));

    server.kill().unwrap();
    server.restart().unwrap();
    // The connections in its pool were cut. Whoever is given one of them is told so, and it is not given out again.
    let answers = (0..10).find_map(|_| pgbouncer.query("select 'back'").ok().flatten());
    assert_eq!(answers.as_deref(), Some("back"));

    let pid = pgbouncer.pid().unwrap();
    drop(pgbouncer);
    assert!(!is_running(pid));
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let error = Postgres::start(PostgresVersion::V15, &[("shared_buffers", "a lot")]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("invalid value for parameter"), "{text}");
}

#[test]
fn mysql_and_mariadb_survive_a_crash_with_their_data_and_their_ports() {
    for (flavor, version) in [(MysqlFlavor::Mysql, "9."), (MysqlFlavor::Mariadb, "10.11.")] {
        let server = Mysql::start(flavor, &[("max-connections", "77")]).unwrap();
        assert!(server.query("SELECT version()").unwrap().unwrap().starts_with(version));
        assert_eq!(server.query("SELECT @@max_connections").unwrap().as_deref(), Some("77"));
        server.query("CREATE TABLE kept AS SELECT 7 AS n").unwrap();
        let (url, first, data) = (server.url(), server.pid().unwrap(), server.data());

        server.kill().unwrap();
        assert!(!is_running(first));
        assert!(server.query("SELECT 1").is_err());

        server.restart().unwrap();
        assert_eq!(server.query("SELECT n FROM kept").unwrap().as_deref(), Some("7"));
        assert_eq!(server.url(), url);

        drop(server);
        assert!(!data.exists());
    }
}

#[test]
fn redis_and_valkey_survive_a_crash_with_their_data_and_their_port() {
    for version in [RedisVersion::Redis7, RedisVersion::Valkey] {
        survives(version);
    }
}

fn survives(version: RedisVersion) {
    let server = Redis::start(version, &[]).unwrap();
    assert_eq!(server.command("SET kept 7").unwrap(), "+OK");
    let (first, url) = (server.pid().unwrap(), server.url());

    server.kill().unwrap();
    assert!(!is_running(first));
    assert!(server.command("PING").is_err());

    server.restart().unwrap();
    assert_eq!(server.url(), url);
    assert_eq!(server.command("STRLEN kept").unwrap(), ":1");

    let last = server.pid().unwrap();
    drop(server);
    assert!(!is_running(last));
}
