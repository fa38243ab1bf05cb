//! Chunks in a user's transaction, on each driver.

use diesel_async::{AnsiTransactionManager, AsyncConnection, AsyncPgConnection, TransactionManager};
use leasehold_core::{Enqueued, NewJob, TxStore};
use sqlx::{Connection, PgConnection};
use tokio_postgres::NoTls;

use super::{World, job};

/// A key in the first chunk and in the third one.
fn jobs() -> Vec<NewJob> {
    [None, Some("a"), None, Some("b"), Some("c"), Some("a")].map(|key| job("k", key)).to_vec()
}

fn check(answers: &[Enqueued]) {
    let deduplicated: Vec<bool> = answers.iter().map(|answer| answer.deduplicated).collect();
    assert_eq!(deduplicated, [false, false, false, false, false, true]);
    assert_eq!(answers[5].id, answers[1].id);
    assert!(answers[..5].is_sorted_by(|one, other| one.id < other.id), "{answers:?}");
}

/// A statement of a batch has two jobs at most.
async fn world() -> World {
    let mut world = World::new().await;
    world
        .run(
            "CREATE FUNCTION {schema}.at_most_two() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF (SELECT count(*) FROM inserted) > 2 THEN RAISE EXCEPTION 'more than a chunk'; END IF;
                 RETURN NULL;
             END $$;
             CREATE TRIGGER at_most_two AFTER INSERT ON {schema}.job_queue REFERENCING NEW TABLE AS inserted
             FOR EACH STATEMENT EXECUTE FUNCTION {schema}.at_most_two()",
        )
        .await;
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn on_diesel() {
    let mut world = world().await;
    let mut conn = AsyncPgConnection::establish(&super::url()).await.unwrap();
    AnsiTransactionManager::begin_transaction(&mut conn).await.unwrap();
    check(&world.small.enqueue_in(&mut conn, &jobs()).await.unwrap());
    assert_eq!(world.jobs().await, 0);
    AnsiTransactionManager::commit_transaction(&mut conn).await.unwrap();
    assert_eq!(world.jobs().await, 5);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_tokio_postgres() {
    let mut world = world().await;
    let (mut client, connection) = tokio_postgres::connect(&super::url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut tx = client.transaction().await.unwrap();
    check(&world.small.enqueue_in(&mut tx, &jobs()).await.unwrap());
    assert_eq!(world.jobs().await, 0);
    tx.commit().await.unwrap();
    assert_eq!(world.jobs().await, 5);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlx() {
    let mut world = world().await;
    let mut conn = PgConnection::connect(&super::url()).await.unwrap();
    let mut tx = conn.begin().await.unwrap();
    check(&world.small.enqueue_in(&mut *tx, &jobs()).await.unwrap());
    assert_eq!(world.jobs().await, 0);
    tx.commit().await.unwrap();
    assert_eq!(world.jobs().await, 5);
    world.end().await;
}
