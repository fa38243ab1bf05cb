//! What each `sslmode` accepts and refuses.

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;

use super::ask;
use super::server::{PASSWORD, Server};
use crate::connect::Connector;

/// How an attempt ended.
#[derive(Debug, PartialEq)]
enum Outcome {
    Encrypted,
    Plain,
    Refused(String),
}
use Outcome::{Encrypted, Plain};

impl Outcome {
    fn is_refused_with(&self, text: &str) -> bool {
        matches!(self, Self::Refused(reason) if reason.contains(text))
    }
}

async fn attempt(url: &str) -> Outcome {
    let connector = match Connector::parse(url) {
        Ok(connector) => connector,
        Err(error) => return Outcome::Refused(error.to_string()),
    };
    match connector.open().await {
        Ok(mut connection) => {
            let query = "(SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid())";
            if ask(&mut connection, query).await == "true" { Encrypted } else { Plain }
        }
        Err(error) => Outcome::Refused(error.to_string()),
    }
}

#[track_caller]
fn assert_refused(outcome: &Outcome, reason: &str) {
    assert!(outcome.is_refused_with(reason), "refused with {reason:?} was expected, seen: {outcome:?}");
}

#[tokio::test]
async fn the_weak_modes_ask_for_no_certificate() {
    let server = Server::encrypted().await;
    assert_eq!(attempt(&server.url("")).await, Encrypted);
    assert_eq!(attempt(&server.url("sslmode=allow")).await, Encrypted);
    assert_eq!(attempt(&server.url("sslmode=prefer")).await, Encrypted);
    assert_eq!(attempt(&server.url("sslmode=require")).await, Encrypted);
    assert_eq!(attempt(&server.url("sslmode=disable")).await, Plain);
    assert_eq!(attempt(&server.url("sslmode=require&channel_binding=require")).await, Encrypted);
    assert_refused(&attempt(&server.url("sslmode=disable&channel_binding=require")).await, "channel binding");
}

#[tokio::test]
async fn the_strong_modes_ask_for_the_chain_and_for_the_name() {
    let server = Server::encrypted().await;
    let (ca, stranger) = (server.file("ca.crt"), server.file("stranger.crt"));
    let by_address = |options: &str| server.url_of("app", "127.0.0.1", options);

    assert_eq!(attempt(&server.url(&format!("sslmode=verify-full&sslrootcert={ca}"))).await, Encrypted);
    assert_eq!(attempt(&server.url(&format!("sslmode=verify-ca&sslrootcert={ca}"))).await, Encrypted);
    assert_eq!(attempt(&by_address(&format!("sslmode=verify-ca&sslrootcert={ca}"))).await, Encrypted);
    assert_eq!(attempt(&by_address(&format!("sslmode=require&sslrootcert={ca}"))).await, Encrypted);
    let by_address = attempt(&by_address(&format!("sslmode=verify-full&sslrootcert={ca}"))).await;
    assert_refused(&by_address, "not valid for name");

    for mode in ["require", "verify-ca", "verify-full"] {
        let url = server.url(&format!("sslmode={mode}&sslrootcert={stranger}"));
        assert_refused(&attempt(&url).await, "UnknownIssuer");
    }
}

#[tokio::test]
async fn the_system_does_not_know_a_private_authority() {
    let server = Server::encrypted().await;
    for options in ["sslmode=verify-full", "sslmode=verify-ca", "sslrootcert=system"] {
        let outcome = attempt(&server.url(options)).await;
        let is_refused =
            outcome.is_refused_with("UnknownIssuer") || outcome.is_refused_with("no root certificates");
        assert!(is_refused, "{options}: {outcome:?}");
    }
}

#[tokio::test]
async fn pairs_are_understood_as_urls_are() {
    let server = Server::encrypted().await;
    let url = server.url("");
    let port = url.split("localhost:").nth(1).and_then(|tail| tail.split('/').next()).unwrap();
    let pairs = |options: &str| {
        format!("host=localhost port={port} user=app password='{PASSWORD}' dbname=postgres {options}")
    };
    let full = format!("sslmode = verify-full sslrootcert='{}'", server.file("ca.crt"));
    assert_eq!(attempt(&pairs(&full)).await, Encrypted);
    assert_eq!(attempt(&pairs("sslmode=disable")).await, Plain);
    let numbers = pairs("sslmode=require").replace("host=localhost", "hostaddr=127.0.0.1");
    assert_eq!(attempt(&numbers).await, Encrypted, "an address without a name");
}

#[tokio::test]
async fn a_client_shows_its_certificate() {
    let server = Server::encrypted().await;
    let (certificate, key) = (server.file("client.crt"), server.file("client.key"));
    let (ca, identity) = (server.file("ca.crt"), format!("sslcert={certificate}&sslkey={key}"));
    let full = format!("sslmode=verify-full&sslrootcert={ca}");
    let certified = |options: &str| server.url_of("certified", "localhost", options);

    assert_eq!(attempt(&certified(&format!("{full}&{identity}"))).await, Encrypted);
    assert_refused(&attempt(&certified(&full)).await, "client certificate");
    assert_refused(
        &attempt(&certified(&format!("{full}&sslcert={certificate}"))).await,
        "sslkey must not be empty",
    );
    let mixed = format!("{full}&sslcert={ca}&sslkey={key}");
    assert_refused(&attempt(&certified(&mixed)).await, "sslkey must have the form");
}

#[tokio::test]
async fn a_server_without_tls_gets_plaintext_only_from_those_who_allow_it() {
    let server = Server::unencrypted().await;
    assert_eq!(attempt(&server.url("sslmode=disable")).await, Plain);
    assert_eq!(attempt(&server.url("sslmode=prefer")).await, Plain);
    assert_refused(&attempt(&server.url("sslmode=require")).await, "does not support TLS");
    let full = format!("sslmode=verify-full&sslrootcert={}", server.file("ca.crt"));
    assert_refused(&attempt(&server.url(&full)).await, "does not support TLS");
    assert_eq!(attempt(&(server.socket() + " sslmode=require")).await, Plain, "a Unix socket has no TLS");
}

#[tokio::test]
async fn prefer_goes_plain_where_the_rules_ask_for_it() {
    let server = Server::encrypted().await;
    let plain = |options: &str| server.url_of("plain", "localhost", options);
    assert_eq!(attempt(&plain("sslmode=prefer")).await, Plain);
    assert_refused(&attempt(&plain("sslmode=require")).await, "pg_hba.conf rejects");
}

#[tokio::test]
async fn a_statement_is_cancelled_as_its_connection_is_encrypted() {
    let server = Server::encrypted().await;
    let trusting = |file: &str| {
        let options = format!("sslmode=verify-full&sslrootcert={}", server.file(file));
        Connector::parse(&server.url(&options)).unwrap()
    };
    let (connector, stranger) = (trusting("ca.crt"), trusting("stranger.crt"));
    let mut connection = connector.open().await.unwrap();
    let statement = connection.cancel_token();
    let sleeping = tokio::spawn(async move { connection.batch_execute("SELECT pg_sleep(60)").await });
    stranger.cancel(&statement).await.expect_err("the server is known to nobody");
    let cancelled = async {
        // A request that comes before the statement cancels nothing.
        while !sleeping.is_finished() {
            connector.cancel(&statement).await.unwrap();
        }
        sleeping.await.unwrap().unwrap_err().to_string()
    };
    let error = tokio::time::timeout(Duration::from_secs(30), cancelled).await.expect("it is not cancelled");
    assert_eq!(error, "canceling statement due to user request");
}
