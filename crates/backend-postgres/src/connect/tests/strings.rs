//! Which connection strings are read, and how.

use std::path::PathBuf;
use std::time::Duration;

use leasehold_core::StoreError;
use tokio_postgres::config::{ChannelBinding, Host, SslMode};

use crate::connect::Connector;
use crate::tls::Mode;

fn parse(url: &str) -> Connector {
    Connector::parse(url).unwrap()
}

#[track_caller]
fn assert_refused(url: &str, field: &str) {
    match Connector::parse(url) {
        Err(StoreError::Invalid(invalid)) => assert_eq!(invalid.field, field, "{url}: {invalid}"),
        other => panic!("{url}: {other:?}"),
    }
}

#[test]
fn a_url_and_pairs_say_the_same() {
    let url = parse("postgresql://ann:s%40crt@db.example:6000/jobs?sslmode=require&application_name=x");
    let pairs = parse(
        r"user=ann password=s@crt  host = db.example port=6000 sslmode='require' dbname=jobs application_name=x",
    );
    assert_eq!(url.inner.config, pairs.inner.config);
    assert_eq!((url.inner.mode, pairs.inner.mode), (Mode::Require, Mode::Require));
    assert_eq!(url.inner.config.get_password(), Some(b"s@crt".as_slice()));
    assert_eq!(url.inner.config.get_application_name(), Some("x"));
}

#[test]
fn quotes_and_escapes_are_those_of_libpq() {
    let config = parse(r"host=h sslmode='dis\able' user='a \' b' password=c\ d").inner.config.clone();
    assert_eq!(config.get_ssl_mode(), SslMode::Disable);
    assert_eq!((config.get_user(), config.get_password()), (Some("a ' b"), Some(b"c d".as_slice())));
}

#[test]
fn defaults_are_set_where_nothing_is_said() {
    let config = parse("host=h").inner.config.clone();
    assert_eq!(config.get_application_name(), Some("leasehold"));
    assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(10)));
    assert!(config.get_keepalives());
    assert_eq!(config.get_keepalives_idle(), Duration::from_secs(60));
    assert_eq!(config.get_ssl_mode(), SslMode::Prefer);

    let config =
        parse("host=h connect_timeout=3 keepalives_idle=9 channel_binding=require").inner.config.clone();
    assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(3)));
    assert_eq!(config.get_keepalives_idle(), Duration::from_secs(9));
    assert_eq!(config.get_channel_binding(), ChannelBinding::Require);
}

#[test]
fn patience_grows_with_the_hosts() {
    assert_eq!(parse("postgres://a,b,c/x?connect_timeout=4").patience(), Duration::from_secs(12));
}

#[test]
fn a_socket_is_a_host() {
    let config = parse("postgres://u@%2Frun%2Fpg/x?sslmode=verify-full&sslrootcert=").inner.config.clone();
    assert_eq!(config.get_hosts(), [Host::Unix(PathBuf::from("/run/pg"))]);
    assert_eq!(config.get_ssl_mode(), SslMode::Disable);
}

#[test]
fn the_last_of_several_wins() {
    assert_eq!(parse("host=h sslmode=require sslmode=disable").inner.mode, Mode::Disable);
    assert_eq!(parse("postgres://h/x?sslmode=require&sslm%6Fde=disable").inner.mode, Mode::Disable);
}

#[test]
fn what_cannot_be_meant_is_refused() {
    for url in
        ["", "postgres://", "postgres:///x", "mysql://h/x", "host=h port=x", "host='h", "host=h colour=red"]
    {
        assert_refused(url, "url");
    }
    assert_refused("postgres://a:1,b:2/x?hostaddr=127.0.0.1", "url");
    assert_refused("host=a,b,c port=1,2", "url");
    assert_refused("host=h sslmode=maybe", "sslmode");
    assert_refused("host=h sslmode=require sslrootcert=system", "sslmode");
    assert_refused("host=h sslnegotiation=direct", "sslmode");
    assert_refused("host=h sslmode=verify-ca sslrootcert=/nowhere", "sslrootcert");
    assert_refused("host=h sslcert=/nowhere sslkey=/nowhere", "sslcert");
    assert_refused("host=h sslcert=/nowhere", "sslkey");
}
