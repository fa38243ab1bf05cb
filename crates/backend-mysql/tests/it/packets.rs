//! A small `max_allowed_packet`: what is sent is divided by it, and what no packet has room for is refused before it is sent.

use diesel_async::{AnsiTransactionManager, TransactionManager};
use leasehold_core::{
    BatchSize, Dequeue, HistoryFilter, Job, Json, NewJob, Problem, Store, StoreError, TxStore, Verdict,
};
use leasehold_mysql::MysqlStore;
use leasehold_servers::MysqlFlavor;

use crate::support::{Fresh, plain, unusual, users_pool};

const BOTH: [MysqlFlavor; 2] = [MysqlFlavor::Mysql, MysqlFlavor::Mariadb];
/// What the server has.
const PACKET: usize = 4 << 20;

async fn claim(store: &MysqlStore, count: u32) -> Vec<Job> {
    let jobs = store.dequeue(&Dequeue::new("q", "w").unwrap().limit(count).unwrap()).await.unwrap();
    assert_eq!(jobs.len(), count as usize);
    jobs
}

/// Headers count, and so do the quotes of documents that travel inside of others.
#[tokio::test(flavor = "multi_thread")]
async fn batches_are_divided_by_the_size_of_a_packet() {
    for flavor in BOTH {
        let server = unusual(flavor).await;
        let fresh = Fresh::at(&server.url()).await;
        let store = fresh.store().await;
        let headers = NewJob::builder("q", "k").header("h", "x".repeat(15_000)).build().unwrap();
        assert_eq!(store.enqueue(&vec![headers; 500]).await.unwrap().len(), 500);
        let quotes = "\"".repeat(300_000);
        let jobs = claim(&store, 12).await;
        let again: Vec<_> = jobs.iter().map(|job| (job.receipt(), Verdict::retry(&quotes))).collect();
        assert!(store.settle(&again).await.unwrap().iter().all(|outcome| !outcome.is_lost()));
        let jobs = claim(&store, 40).await;
        let ends = jobs.iter().enumerate().map(|(n, job)| {
            let document = format!("{n}{quotes}");
            let verdict =
                if n % 2 == 0 { Verdict::dead(document) } else { Verdict::done_with(&document).unwrap() };
            (job.receipt(), verdict)
        });
        assert!(store.settle(&ends.collect::<Vec<_>>()).await.unwrap().iter().all(|one| !one.is_lost()));
        fresh.drop().await;
    }
}

/// Rows with three documents of the largest size are larger than a packet, and can be read.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_accepted_can_be_read() {
    for flavor in BOTH {
        let server = unusual(flavor).await;
        let fresh = Fresh::at(&server.url()).await;
        fresh.store().await;
        let builder = MysqlStore::builder().payload_limit(2_000_000).unwrap();
        let store = builder.connect(&fresh.url).await.unwrap();
        let text = "x".repeat(1_900_000);
        store.enqueue(&[NewJob::builder("q", "k").payload(&text).build().unwrap()]).await.unwrap();
        let job = claim(&store, 1).await.remove(0);
        store.nack(&job.receipt(), Json::new(&text).unwrap()).await.unwrap().fate();
        store.promote(job.id).await.unwrap();
        let job = claim(&store, 1).await.remove(0);
        store.ack(&job.receipt(), Json::new(&text).unwrap()).await.unwrap().fate();
        let finished = store.history(&HistoryFilter::default()).await.unwrap().items;
        assert_eq!(finished[0].payload.to::<String>().unwrap(), text);
        fresh.drop().await;
    }
}

/// On a pool that was not looked at: the field and the limit are named, nothing was done, and the connection is still good.
#[tokio::test(flavor = "multi_thread")]
async fn what_no_packet_has_room_for_is_invalid() {
    for flavor in BOTH {
        let server = unusual(flavor).await;
        let fresh = Fresh::at(&server.url()).await;
        let builder = MysqlStore::builder().payload_limit(8 << 20).unwrap();
        let store = builder.from_pool(users_pool(&fresh.url, &[]));
        store.migrate().await.unwrap();
        let refused = |error: StoreError, field: &str| {
            let StoreError::Invalid(invalid) = &error else { panic!("{error:?}") };
            assert_eq!(invalid.field, field);
            let Problem::TooLong { bytes, limit } = invalid.problem else { panic!("{invalid:?}") };
            assert!(bytes > limit && limit < PACKET, "{invalid:?}");
        };
        let job = |bytes: usize| NewJob::builder("q", "k").payload(&"x".repeat(bytes)).build().unwrap();
        refused(store.enqueue(&[job(1), job(PACKET)]).await.unwrap_err(), "payload");
        let mut conn = plain(&fresh.url).await;
        AnsiTransactionManager::begin_transaction(&mut conn).await.unwrap();
        refused(store.enqueue_in(&mut conn, &[job(PACKET)]).await.unwrap_err(), "payload");
        store.enqueue_in(&mut conn, &[job(1)]).await.unwrap();
        AnsiTransactionManager::commit_transaction(&mut conn).await.unwrap();

        let jobs = claim(&store, 1).await;
        let settle = async |verdict: Verdict| store.settle(&[(jobs[0].receipt(), verdict)]).await;
        let (large, quotes) = ("x".repeat(PACKET), "\"".repeat(PACKET / 2));
        refused(settle(Verdict::done_with(&large).unwrap()).await.unwrap_err(), "result");
        refused(settle(Verdict::retry(&quotes)).await.unwrap_err(), "error");
        refused(settle(Verdict::discard(&large)).await.unwrap_err(), "reason");
        refused(store.discard(jobs[0].id, Json::new(&large).unwrap()).await.unwrap_err(), "reason");
        assert_eq!(store.reclaim(BatchSize::MAX).await.unwrap().len(), 0);
        assert!(settle(Verdict::done()).await.unwrap().iter().all(|outcome| !outcome.is_lost()));
        fresh.drop().await;
    }
}
