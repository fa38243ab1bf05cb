//! The conformance suite's checks of transactions on the drivers that are features. Those on diesel-async are part of
//! `conformance`.

mod sqlx;
mod tokio_postgres;

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_conformance::{BoxError, Harness, Isolation, Need, Transaction, run_checks};
use leasehold_core::{JobId, Result, Store};

use crate::support::{Database, Server};

#[test]
fn transactions_conform_on_sqlx() {
    conforms::<sqlx::Driver>("sqlx");
}

#[test]
fn transactions_conform_on_tokio_postgres() {
    conforms::<tokio_postgres::Driver>("tokio-postgres");
}

fn conforms<D: Driver>(name: &'static str) {
    let server = Server::direct(name, "LEASEHOLD_TEST_POSTGRES_URL").with_events();
    let harness = Arc::new(On::<D> { server, driver: PhantomData });
    let report = run_checks(&harness, |check| check.needs.contains(&Need::Transactions));
    assert!(report.checks.len() > 20, "{}", report.table());
    assert!(report.passed(), "{}", report.table());
}

/// A way to open transactions on one database.
#[async_trait]
trait Driver: Sized + Send + Sync + 'static {
    fn open(url: &str) -> Result<Self, BoxError>;

    async fn begin(&self, database: &Database) -> Result<Box<dyn Transaction>, BoxError>;

    async fn begin_at(&self, database: &Database, level: Isolation)
    -> Result<Box<dyn Transaction>, BoxError>;

    /// `None`, as by default, of a type that always is a transaction.
    async fn no_transaction(&self, _: &Database) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        Ok(None)
    }

    async fn close(&self) {}
}

/// The server, on which transactions are opened by the driver `D`.
struct On<D> {
    server: Server,
    driver: PhantomData<D>,
}

#[async_trait]
impl<D: Driver> Harness for On<D> {
    type Database = (Database, D);

    fn name(&self) -> &str {
        self.server.name()
    }

    async fn create(&self) -> Result<(Database, D), BoxError> {
        Ok((self.server.create().await?, D::open(&self.server.url)?))
    }

    async fn destroy(&self, (database, driver): &(Database, D)) -> Result<(), BoxError> {
        driver.close().await;
        self.server.destroy(database).await
    }

    async fn connect(&self, (database, _): &(Database, D)) -> Result<Arc<dyn Store>, BoxError> {
        self.server.connect(database).await
    }

    async fn age(&self, (database, _): &(Database, D), by: Duration) -> Result<(), BoxError> {
        self.server.age(database, by).await
    }

    async fn finish_twin(&self, (database, _): &(Database, D), id: JobId) -> Result<bool, BoxError> {
        self.server.finish_twin(database, id).await
    }

    async fn begin(
        &self,
        (database, driver): &(Database, D),
    ) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        Ok(Some(driver.begin(database).await?))
    }

    async fn begin_at(
        &self,
        (database, driver): &(Database, D),
        level: Isolation,
    ) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        Ok(Some(driver.begin_at(database, level).await?))
    }

    async fn no_transaction(
        &self,
        (database, driver): &(Database, D),
    ) -> Result<Option<Box<dyn Transaction>>, BoxError> {
        driver.no_transaction(database).await
    }

    async fn ledger(&self, (database, _): &(Database, D)) -> Result<Vec<String>, BoxError> {
        self.server.ledger(database).await
    }
}
