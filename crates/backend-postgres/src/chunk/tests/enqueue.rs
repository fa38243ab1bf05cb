//! Accepting jobs in chunks.

use diesel_async::{AnsiTransactionManager, AsyncConnection, AsyncPgConnection, TransactionManager};
use leasehold_core::{Enqueued, JobId, NewJob, Record, Store, StoreError, TxStore};

use super::{World, job};

/// How many statements the last batch was.
const STATEMENTS: &str = "SELECT number FROM {schema}.statements";

/// Counts the statements that insert jobs, whether they are undone or not.
async fn count_statements(world: &mut World) {
    world
        .run(
            "CREATE SEQUENCE {schema}.statement;
             CREATE VIEW {schema}.statements AS SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS number
             FROM {schema}.statement;
             CREATE FUNCTION {schema}.count_statement() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM nextval(format('%I.statement', TG_TABLE_SCHEMA)); RETURN NULL;
             END $$;
             CREATE TRIGGER count_statement AFTER INSERT ON {schema}.job_queue
             FOR EACH STATEMENT EXECUTE FUNCTION {schema}.count_statement()",
        )
        .await;
}

/// Each answer as the place of the job that it names, and whether it was there before.
fn shape(answers: &[Enqueued], there: &[JobId]) -> Vec<(String, bool)> {
    let mut seen: Vec<JobId> = Vec::new();
    let name = |answer: &Enqueued| {
        if let Some(place) = there.iter().position(|id| *id == answer.id) {
            return (format!("there {place}"), answer.deduplicated);
        }
        if !seen.contains(&answer.id) {
            seen.push(answer.id);
        }
        let place = seen.iter().position(|id| *id == answer.id).unwrap();
        (format!("new {place}"), answer.deduplicated)
    };
    answers.iter().map(name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_rise_in_the_order_of_the_jobs() {
    let mut world = World::new().await;
    count_statements(&mut world).await;
    let jobs: Vec<NewJob> = (0..5).map(|number| job(&format!("k{number}"), None)).collect();
    let answers = world.small.enqueue(&jobs).await.unwrap();
    assert_eq!(world.number(STATEMENTS).await, 3);
    assert!(answers.is_sorted_by(|one, other| one.id < other.id), "{answers:?}");
    for (job, answer) in jobs.iter().zip(&answers) {
        let record = world.whole.get(answer.id).await.unwrap().unwrap();
        assert!(matches!(record, Record::Live(live) if live.kind == *job.kind()));
    }
    world.end().await;
}

/// E3, E4, E5: keys that repeat within a chunk, in another chunk, and that live jobs have.
#[tokio::test(flavor = "multi_thread")]
async fn unique_keys_count_across_chunks() {
    let keys =
        [Some("a"), Some("there"), Some("b"), None, Some("a"), Some("c"), Some("b"), Some("there"), None];
    let mut shapes = Vec::new();
    for is_small in [true, false] {
        let mut world = World::new().await;
        let there = world.whole.enqueue(&[job("k", Some("there"))]).await.unwrap()[0].id;
        count_statements(&mut world).await;
        let store = if is_small { &world.small } else { &world.whole };
        let jobs: Vec<NewJob> = keys.iter().map(|key| job("k", *key)).collect();
        let answers = store.enqueue(&jobs).await.unwrap();
        assert_eq!(world.number(STATEMENTS).await, if is_small { 3 } else { 1 });
        assert_eq!(world.jobs().await, 6);
        shapes.push(shape(&answers, &[there]));
        world.end().await;
    }
    assert_eq!(shapes[0], shapes[1]);
    let deduplicated: Vec<bool> = shapes[0].iter().map(|(_, deduplicated)| *deduplicated).collect();
    assert_eq!(deduplicated, [false, true, false, false, true, false, true, true, false]);
}

/// E1: with keys and without them.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_in_the_second_chunk_undoes_the_first() {
    let mut world = World::new().await;
    count_statements(&mut world).await;
    world.at_insert("job_queue", "BEFORE", "NEW.kind = 'bad'", "RAISE EXCEPTION 'bad'").await;
    for key in [None, Some("key")] {
        let jobs = [job("k", None), job("k", key), job("bad", None), job("k", None), job("k", None)];
        let error = world.small.enqueue(&jobs).await.unwrap_err();
        assert!(matches!(error, StoreError::Backend { .. }), "{error:?}");
        assert_eq!(world.number(STATEMENTS).await, 1, "the first chunk was sent");
        assert_eq!(world.jobs().await, 0);
        world.run("ALTER SEQUENCE {schema}.statement RESTART").await;
    }
    let jobs = [job("k", None), job("k", Some("key")), job("k", None)];
    assert_eq!(world.small.enqueue(&jobs).await.unwrap().len(), 3);
    assert_eq!(world.jobs().await, 3);
    world.end().await;
}

/// A key that another transaction has taken while the batch was under way: the batch waits for it, and goes by what came of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_race_for_a_key_of_the_second_chunk() {
    let mut world = World::new().await;
    let mut beside = AsyncPgConnection::establish(&super::url()).await.unwrap();
    AnsiTransactionManager::begin_transaction(&mut beside).await.unwrap();
    let winner = world.whole.enqueue_in(&mut beside, &[job("k", Some("raced"))]).await.unwrap();
    let store = world.small.clone();
    let batch = tokio::spawn(async move {
        let keys = ["a", "b", "raced", "c", "raced"];
        store.enqueue(&keys.map(|key| job("k", Some(key)))).await
    });
    world.wait_for_a_lock().await;
    AnsiTransactionManager::commit_transaction(&mut beside).await.unwrap();
    let answers = batch.await.unwrap().unwrap();
    assert_eq!((answers[2].id, answers[2].deduplicated), (winner[0].id, true));
    assert_eq!((answers[4].id, answers[4].deduplicated), (winner[0].id, true));
    assert_eq!(world.jobs().await, 4);
    world.end().await;
}

/// Jobs that are enqueued one by one at the same time go together, but not in one statement beyond a chunk.
#[tokio::test]
async fn gathered_jobs_are_sent_in_chunks() {
    let mut world = World::new().await;
    world
        .run(
            "CREATE TABLE {schema}.statement (jobs bigint NOT NULL);
             CREATE FUNCTION {schema}.count_inserted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 EXECUTE format('INSERT INTO %I.statement SELECT count(*) FROM inserted', TG_TABLE_SCHEMA);
                 RETURN NULL;
             END $$;
             CREATE TRIGGER count_inserted AFTER INSERT ON {schema}.job_queue REFERENCING NEW TABLE AS inserted
             FOR EACH STATEMENT EXECUTE FUNCTION {schema}.count_inserted()",
        )
        .await;
    world.run("BEGIN; LOCK TABLE {schema}.job_queue IN SHARE MODE").await;
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let store = world.small.clone();
        callers.spawn(async move { store.enqueue(&[job("k", None)]).await });
    }
    world.wait_for_a_lock().await;
    world.run("COMMIT").await;
    while let Some(answer) = callers.join_next().await {
        assert_eq!(answer.unwrap().unwrap().len(), 1);
    }
    assert_eq!(world.number("SELECT sum(jobs) FROM {schema}.statement").await, 20);
    assert_eq!(world.number("SELECT max(jobs) FROM {schema}.statement").await, 2);
    world.end().await;
}
