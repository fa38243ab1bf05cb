//! temporary
use std::time::Duration;

use diesel_async::pooled_connection::deadpool::Pool;
use diesel_async::pooled_connection::{AsyncDieselConnectionManager, ManagerConfig, RecyclingMethod};
use diesel_async::{AsyncConnection, AsyncPgConnection, SimpleAsyncConnection};
use futures_util::FutureExt;
use leasehold_core::{Result, StoreError};

#[derive(Clone, Debug)]
pub(crate) struct Connector(String);

impl Connector {
    pub(crate) fn parse(url: &str) -> Result<Self> {
        Ok(Self(url.to_owned()))
    }
}

pub(crate) fn pool(connector: &Connector, size: usize, wait: Duration) -> Result<Pool<AsyncPgConnection>> {
    let mut config = ManagerConfig::default();
    config.recycling_method = RecyclingMethod::Fast;
    config.custom_setup = Box::new(|url| {
        async move {
            let mut conn = AsyncPgConnection::establish(url).await?;
            conn.batch_execute("SET plan_cache_mode = force_custom_plan")
                .await
                .map_err(diesel::ConnectionError::CouldntSetupConfiguration)?;
            Ok(conn)
        }
        .boxed()
    });
    let manager = AsyncDieselConnectionManager::new_with_config(&connector.0, config);
    Pool::builder(manager)
        .max_size(size)
        .wait_timeout(Some(wait))
        .runtime(deadpool::Runtime::Tokio1)
        .build()
        .map_err(|error| StoreError::backend("connect", error))
}
