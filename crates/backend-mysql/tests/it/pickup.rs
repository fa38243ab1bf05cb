//! Hints for jobs that other processes have enqueued.

use std::time::Duration;

use diesel::sql_types::Text;
use diesel_async::{AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection};
use futures_util::StreamExt;
use leasehold_core::{NewJob, Queues, Store, Wakeups};
use leasehold_mysql::MysqlStore;
use leasehold_servers::{Mysql, MysqlFlavor};

use crate::support::{BOTH, Fresh, plain};

/// Much longer than anything here takes: a test that is wrong fails, and does not hang.
const DEADLINE: Duration = Duration::from_secs(30);

/// What docs/mysql.md lists under Rights.
const GRANTS: [(&str, &str); 6] = [
    ("SELECT, INSERT, UPDATE, DELETE", "job_queue"),
    ("SELECT, INSERT, UPDATE, DELETE", "job_history"),
    ("SELECT, INSERT, UPDATE, DELETE", "job_queue_config"),
    ("SELECT, INSERT, UPDATE", "job_queue_limit"),
    ("SELECT, INSERT, DELETE", "job_idempotency"),
    ("SELECT", "job_migration"),
];

/// A store of an account that may do no more than that.
async fn restricted(fresh: &Fresh, conn: &mut AsyncMysqlConnection, name: &str) -> MysqlStore {
    let user = format!("{name}_{}", fresh.name);
    conn.batch_execute(&format!("CREATE USER {user}@'%' IDENTIFIED BY 'word'")).await.unwrap();
    for (rights, table) in GRANTS {
        let grant = format!("GRANT {rights} ON {}.{table} TO {user}@'%'", fresh.name);
        conn.batch_execute(&grant).await.unwrap();
    }
    let url = fresh.url.replacen("leasehold@", &format!("{user}:word@"), 1);
    MysqlStore::connect(&url).await.unwrap()
}

async fn enqueue(store: &MysqlStore, queue: &str) {
    store.enqueue(&[NewJob::builder(queue, "k").build().unwrap()]).await.unwrap();
}

async fn is_hinted(hints: &mut Wakeups) {
    tokio::time::timeout(DEADLINE, hints.next()).await.unwrap().unwrap();
}

/// Producer and worker have two accounts. More jobs of other queues come than are looked at one by one.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_another_account_is_hinted() {
    for variable in BOTH {
        let fresh = Fresh::on(variable).await;
        fresh.store().await;
        let mut conn = plain(&fresh.url).await;
        let worker = restricted(&fresh, &mut conn, "w").await;
        let producer = restricted(&fresh, &mut conn, "p").await;
        let mut hints = worker.wakeups(&Queues::named(["a"]).unwrap()).await.unwrap();
        let mut others = worker.wakeups(&"b*".parse::<Queues>().unwrap()).await.unwrap();
        // The first look finds what is there: a job before it is nobody's news.
        let mut rounds = 0;
        loop {
            enqueue(&producer, "a").await;
            if tokio::time::timeout(Duration::from_millis(200), hints.next()).await.is_ok() {
                break;
            }
            rounds += 1;
            assert!(rounds < 50, "no hint came");
        }
        producer.enqueue(&vec![NewJob::builder("c", "k").build().unwrap(); 2500]).await.unwrap();
        enqueue(&producer, "bb").await;
        is_hinted(&mut others).await;
        enqueue(&producer, "a").await;
        is_hinted(&mut hints).await;
        for name in ["w", "p"] {
            conn.batch_execute(&format!("DROP USER {name}_{}@'%'", fresh.name)).await.unwrap();
        }
        fresh.drop().await;
    }
}

/// How many statements clients have sent, this one included.
async fn statements(conn: &mut AsyncMysqlConnection) -> u64 {
    #[derive(diesel::QueryableByName)]
    struct Status {
        #[diesel(sql_type = Text)]
        #[diesel(column_name = "Value")]
        value: String,
    }
    let status = "SHOW GLOBAL STATUS LIKE 'Questions'";
    diesel::sql_query(status).get_result::<Status>(conn).await.unwrap().value.parse().unwrap()
}

/// The question is switched off by a setting, and then nothing is sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_not_to_look_sends_nothing() {
    for flavor in [MysqlFlavor::Mysql, MysqlFlavor::Mariadb] {
        let server = tokio::task::spawn_blocking(move || Mysql::start(flavor, &[]).unwrap()).await.unwrap();
        let fresh = Fresh::at(&server.url()).await;
        fresh.store().await;
        let mut conn = plain(&fresh.url).await;
        let silent = MysqlStore::builder().polling(false).connect(&fresh.url).await.unwrap();
        let _hints = silent.wakeups(&Queues::all()).await.unwrap();
        let before = statements(&mut conn).await;
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        let one = statements(&mut conn).await - before;
        for _ in 0..100 {
            let now = statements(&mut conn).await;
            assert_eq!(statements(&mut conn).await - now, one, "{flavor:?}: somebody else sends statements");
        }
        let looking = MysqlStore::connect(&fresh.url).await.unwrap();
        let queues = Queues::named((0..500).map(|number| format!("q{number}"))).unwrap();
        let mut hints = looking.wakeups(&queues).await.unwrap();
        let mut rounds = 0;
        loop {
            enqueue(&silent, "q7").await;
            if tokio::time::timeout(Duration::from_millis(200), hints.next()).await.is_ok() {
                break;
            }
            rounds += 1;
            assert!(rounds < 50, "no hint came");
        }
    }
}
