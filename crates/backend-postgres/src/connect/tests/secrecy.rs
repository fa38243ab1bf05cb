//! The password is shown nowhere, and plaintext is not passed over in silence.

use std::error::Error;
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_sql::Retirement;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::server::{PASSWORD, Server};
use crate::connect::{Connector, pool};

/// All that can be read in an error.
fn everything(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        write!(text, "{error} {error:?} {error:#?} ").unwrap();
        next = error.source();
    }
    text
}

#[track_caller]
fn assert_secret(text: &str, secrets: &[&str]) {
    for secret in secrets {
        assert!(!text.contains(secret), "{secret:?} is shown: {text}");
    }
}

#[test]
fn a_bad_string_is_not_quoted() {
    let urls = [
        "postgres://ann:Sw0rd@fish@db/jobs",
        "postgres://ann:Sw0rd/fish@db/jobs",
        "postgres://ann:x@Sw0rd/fish@db/jobs",
        "postgres://ann:Sw0rd?fish@db/jobs",
        "postgres://ann:Sw0rdfish",
        "postgres://ann:pass@db:Sw0rd/jobs?fish=1",
        "postgres://db/jobs?user=ann&password=Sw0rd@fish",
        "host=db password=x Sw0rd=fish",
        "host=db password='Sw0rdfish",
        "host=db password=Sw0rd fish",
        "host=db password=Sw0rdfish sslmode=Sw0rd",
    ];
    for url in urls {
        let error = Connector::parse(url).expect_err(url);
        assert_secret(&everything(&error), &["Sw0rd", "fish"]);
    }
}

#[test]
fn a_connector_does_not_show_its_password() {
    let connector = Connector::parse("postgres://ann:Sw0rdfish@db/jobs?options=-c%20a.b%3Dfish").unwrap();
    let shown = format!("{connector:?} {connector:#?}");
    assert!(shown.contains("ann") && shown.contains("db"), "{shown}");
    let pool = pool(&connector, 1, Duration::ZERO, &Retirement::default()).unwrap();
    assert_secret(&format!("{shown} {:?}", pool.manager()), &["Sw0rd", "fish"]);
}

#[tokio::test]
async fn a_refused_password_is_not_repeated() {
    let server = Server::encrypted().await;
    let url = server.url("").replace(PASSWORD, "Wr0ng!Plugh");
    let secrets = [PASSWORD, "Wr0ng!Plugh", "Wr0ng"];
    let connector = Connector::parse(&url).unwrap();
    let error = connector.open().await.err().unwrap();
    assert!(error.to_string().contains("password authentication failed"), "{error}");
    assert_secret(&everything(&error), &secrets);
    let error = pool(&connector, 1, Duration::from_secs(5), &Retirement::default())
        .unwrap()
        .get()
        .await
        .err()
        .unwrap();
    assert_secret(&everything(&error), &secrets);
}

#[tokio::test]
async fn an_unreachable_host_does_not_reveal_the_password() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for host in [format!("127.0.0.1:{closed}"), "nowhere.invalid".to_owned()] {
        let connector = Connector::parse(&format!("postgres://ann:{PASSWORD}@{host}/jobs")).unwrap();
        assert_secret(&everything(&connector.open().await.err().unwrap()), &[PASSWORD]);
    }
}

/// Keeps what is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl Log {
    fn during(work: impl FnOnce()) -> String {
        let log = Self::default();
        tracing::subscriber::with_default(log.clone(), work);
        log.0.lock().unwrap().clone()
    }
}

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0.lock().unwrap(), "{field}={value:?} ").unwrap();
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("leasehold")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
        self.0.lock().unwrap().push('\n');
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn plaintext_to_another_machine_is_logged_once() {
    let connector = Connector::parse(&format!("postgres://ann:{PASSWORD}@db/jobs?sslmode=disable")).unwrap();
    let log = Log::during(|| {
        connector.warn_of_plaintext("db");
        connector.clone().warn_of_plaintext("db");
    });
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains("not encrypted") && log.contains("\"db\"") && log.contains("disable"), "{log}");
    assert_secret(&log, &[PASSWORD]);
}

#[test]
fn plaintext_on_this_machine_is_not_logged() {
    let connector = Connector::parse("host=localhost sslmode=disable").unwrap();
    for host in ["", "localhost", "LOCALHOST", "127.0.0.1", "127.8.9.10", "::1"] {
        assert_eq!(Log::during(|| connector.warn_of_plaintext(host)), "", "{host}");
    }
    let near = Connector::parse("host=db hostaddr=127.0.0.1").unwrap();
    assert_eq!(Log::during(|| near.warn_of_plaintext("db")), "");
    let far = Connector::parse("host=localhost hostaddr=192.0.2.1").unwrap();
    assert_ne!(Log::during(|| far.warn_of_plaintext("localhost")), "");
}
