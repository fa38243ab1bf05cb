//! A store on a pool of the user's, whose sessions are as the server has them: at REPEATABLE READ.

use std::time::{Duration, Instant};

use diesel::sql_types::Text;
use diesel_async::pooled_connection::deadpool::Pool;
use diesel_async::pooled_connection::{AsyncDieselConnectionManager, ManagerConfig, RecyclingMethod};
use diesel_async::{AsyncConnection, AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection};
use leasehold_core::{Dequeue, HeartbeatOutcome, Json, LeaseFor, NewJob, Store, TxStore, Verdict};
use leasehold_mysql::{MysqlStore, TxError};

/// A bound, not a wait.
const PATIENCE: Duration = Duration::from_secs(30);

/// As a user makes one, who knows nothing of us.
fn pool(url: &str) -> Pool<AsyncMysqlConnection> {
    let mut config = ManagerConfig::default();
    config.recycling_method = RecyclingMethod::Fast;
    let url = url.replacen("mariadb:", "mysql:", 1);
    Pool::builder(AsyncDieselConnectionManager::new_with_config(url, config)).max_size(4).build().unwrap()
}

#[derive(diesel::QueryableByName)]
struct Value {
    #[diesel(sql_type = Text, column_name = "Value")]
    value: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_works_on_a_pool_of_the_users() {
    for variable in crate::support::BOTH {
        let fresh = crate::support::Fresh::on(variable).await;
        let pool = pool(&fresh.url);
        let store = MysqlStore::from_pool(pool.clone());
        store.migrate().await.unwrap();
        let job = |key: &str| NewJob::builder("q", "k").unique_key(key).build().unwrap();
        let ids = store.enqueue(&[job("one"), job("two"), job("one")]).await.unwrap();
        assert!(ids[0].id == ids[2].id && ids[2].deduplicated, "{ids:?}");
        let jobs = store.dequeue(&Dequeue::new("q", "w").unwrap().limit(5).unwrap()).await.unwrap();
        assert_eq!(jobs.len(), 2);
        let beside = store.dedicated().await.unwrap().unwrap();
        let lease = LeaseFor::new(Duration::from_secs(60)).unwrap();
        let outcomes = beside.heartbeat(&[jobs[0].receipt()], lease).await.unwrap();
        assert!(matches!(outcomes[..], [HeartbeatOutcome::Extended { .. }]), "{outcomes:?}");
        let mut conn = pool.get().await.unwrap();
        let settled = conn.transaction(async |conn| {
            Ok::<_, TxError>(store.ack_in(conn, &jobs[0].receipt(), Json::null()).await?)
        });
        settled.await.unwrap().fate();
        let outcomes = store.settle(&[(jobs[1].receipt(), Verdict::done())]).await.unwrap();
        assert!(!outcomes[0].is_lost());
        assert_eq!(store.history(&leasehold_core::HistoryFilter::default()).await.unwrap().items.len(), 2);
        drop(conn);
        fresh.drop().await;
    }
}

/// An administrator's word waits for the job's lock, so that its transaction can be looked at.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_stores_own_transactions_are_at_read_committed() {
    for variable in crate::support::BOTH {
        let fresh = crate::support::Fresh::on(variable).await;
        let pool = pool(&fresh.url);
        let store = MysqlStore::from_pool(pool.clone());
        store.migrate().await.unwrap();
        store.enqueue(&[NewJob::builder("q", "k").build().unwrap()]).await.unwrap();
        let jobs = store.dequeue(&Dequeue::new("q", "w").unwrap()).await.unwrap();
        let mut other = crate::support::plain(&fresh.url).await;
        other.batch_execute("START TRANSACTION").await.unwrap();
        other.batch_execute("UPDATE job_queue SET updated_at = updated_at").await.unwrap();
        let (site, id) = (store.clone(), jobs[0].id);
        let discarding = tokio::spawn(async move { site.discard(id, Json::null()).await });
        assert_eq!(
            waiting(&mut crate::support::plain(&fresh.url).await, &fresh.name).await,
            "READ COMMITTED"
        );
        other.batch_execute("ROLLBACK").await.unwrap();
        discarding.await.unwrap().unwrap();
        let mut conn = pool.get().await.unwrap();
        let show = diesel::sql_query("SHOW SESSION VARIABLES LIKE 't%\\_isolation'");
        let values: Vec<Value> = show.load(&mut conn).await.unwrap();
        assert!(!values.is_empty() && values.iter().all(|row| row.value == "REPEATABLE-READ"));
        drop(conn);
        fresh.drop().await;
    }
}

/// The isolation level of the transaction in this database that waits for a lock.
async fn waiting(conn: &mut AsyncMysqlConnection, database: &str) -> String {
    let query = format!(
        "SELECT t.trx_isolation_level AS `Value` FROM information_schema.innodb_trx t
         JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
         WHERE t.trx_state = 'LOCK WAIT' AND p.db = '{database}'"
    );
    // The server gives the same answer again if it is asked more often than every 100 ms.
    let mut turns = tokio::time::interval(Duration::from_millis(150));
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        turns.tick().await;
        let rows: Vec<Value> = diesel::sql_query(&query).load(conn).await.unwrap();
        if let Some(row) = rows.into_iter().next() {
            return row.value;
        }
    }
    panic!("nobody waits");
}
