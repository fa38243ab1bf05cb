//! What a connection is like once it is open.

use super::ask;
use super::server::Server;
use crate::connect::Connector;

#[tokio::test]
async fn the_settings_are_made() {
    let server = Server::encrypted().await;
    let connector = Connector::parse(&server.url("")).unwrap();
    let mut connection = connector.tuned().open().await.unwrap();
    assert_eq!(ask(&mut connection, "current_setting('enable_seqscan')").await, "off");
    assert_eq!(ask(&mut connection, "current_setting('jit')").await, "off");
    // They would be bad for the statements of others.
    let mut connection = connector.open().await.unwrap();
    assert_eq!(ask(&mut connection, "current_setting('enable_seqscan')").await, "on");
    assert_eq!(ask(&mut connection, "current_setting('application_name')").await, "leasehold");
    let named = Connector::parse(&server.url("application_name=billing")).unwrap();
    assert_eq!(ask(&mut named.open().await.unwrap(), "current_setting('application_name')").await, "billing");
}

#[tokio::test]
async fn a_silent_server_is_not_awaited_for_ever() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let url = format!("postgres://ann@127.0.0.1:{port}/jobs?connect_timeout=1");
    let error = Connector::parse(&url).unwrap().open().await.err().unwrap();
    assert!(error.to_string().contains("no answer"), "{error}");
}
