//! What a connection is like once it is open.

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use futures_util::StreamExt;
use tokio_postgres::AsyncMessage;

use super::ask;
use super::server::Server;
use crate::connect::Connector;

#[tokio::test]
async fn the_settings_are_made() {
    let server = Server::encrypted().await;
    let mut connection = Connector::parse(&server.url("")).unwrap().open().await.unwrap();
    assert_eq!(ask(&mut connection, "current_setting('plan_cache_mode')").await, "force_custom_plan");
    assert_eq!(ask(&mut connection, "current_setting('application_name')").await, "leasehold");
    let named = Connector::parse(&server.url("application_name=billing")).unwrap();
    assert_eq!(ask(&mut named.open().await.unwrap(), "current_setting('application_name')").await, "billing");
}

#[tokio::test]
async fn a_notification_arrives() {
    let server = Server::encrypted().await;
    let connector = Connector::parse(&server.url("sslmode=require")).unwrap();
    let (client, messages) = connector.listen().await.unwrap();
    let (sent, mut received) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(messages.for_each(move |message| {
        let _ = sent.send(message);
        std::future::ready(())
    }));
    client.batch_execute("LISTEN bell").await.unwrap();
    connector.open().await.unwrap().batch_execute("NOTIFY bell, 'rung'").await.unwrap();
    let message = tokio::time::timeout(Duration::from_secs(10), received.recv()).await.unwrap();
    match message {
        Some(Ok(AsyncMessage::Notification(notification))) => assert_eq!(notification.payload(), "rung"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_killed_listener_ends_its_messages() {
    let server = Server::encrypted().await;
    let connector = Connector::parse(&server.url("application_name=listener")).unwrap();
    let (_client, messages) = connector.listen().await.unwrap();
    let mut superuser = Connector::parse(&server.socket()).unwrap().open().await.unwrap();
    let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'listener'";
    superuser.batch_execute(kill).await.unwrap();
    let last = tokio::time::timeout(Duration::from_secs(10), messages.collect::<Vec<_>>()).await.unwrap();
    assert!(last.last().is_some_and(Result::is_err), "{last:?}");
}

#[tokio::test]
async fn a_silent_server_is_not_awaited_for_ever() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let url = format!("postgres://ann@127.0.0.1:{port}/jobs?connect_timeout=1");
    let error = Connector::parse(&url).unwrap().open().await.err().unwrap();
    assert!(error.to_string().contains("no answer"), "{error}");
}
