//! A binary log of statements takes no writes at READ COMMITTED (1665).

use std::error::Error;

use leasehold_core::{Dequeue, NewJob, Store, StoreError};
use leasehold_mysql::MysqlStore;
use leasehold_servers::{Mysql, MysqlFlavor};

use crate::support::users_pool;

/// It is found out when the store connects, and the error says what to do. With rows in the log it works.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_statements_is_refused_at_once() {
    for flavor in [MysqlFlavor::Mysql, MysqlFlavor::Mariadb] {
        let extra = [("log-bin", "log"), ("binlog-format", "STATEMENT")];
        let server =
            tokio::task::spawn_blocking(move || Mysql::start(flavor, &extra).unwrap()).await.unwrap();
        let refused = MysqlStore::connect(&server.url()).await.unwrap_err();
        assert!(matches!(refused, StoreError::Conflict { .. }), "{refused:?}");
        assert!(refused.to_string().contains("set binlog_format to ROW"), "{refused}");

        // A pool is not looked at before it is used. Tables can be made, and the first claim fails.
        let users = MysqlStore::from_pool(users_pool(&server.url(), &[]));
        users.migrate().await.unwrap();
        users.enqueue(&[NewJob::builder("q", "k").build().unwrap()]).await.unwrap();
        let refused = users.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap_err();
        assert!(matches!(refused, StoreError::Backend { .. }), "{refused:?}");
        let source = refused.source().unwrap().to_string();
        assert!(source.contains("set binlog_format to ROW"), "{source}");

        server.query("SET GLOBAL binlog_format = 'ROW'").unwrap();
        let store = MysqlStore::connect(&server.url()).await.unwrap();
        assert_eq!(store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap().len(), 1);
        tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
    }
}
