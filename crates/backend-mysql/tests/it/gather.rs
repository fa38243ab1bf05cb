//! Single jobs that are enqueued at the same time share a statement.

use std::collections::BTreeSet;

use crate::support::{BOTH, Fresh};
use futures_util::FutureExt;
use futures_util::future::join_all;
use leasehold_core::{JobId, NewJob, Store};
use leasehold_mysql::MysqlStore;

#[tokio::test]
async fn fifty_callers_are_three_statements() {
    for server in BOTH {
        let fresh = Fresh::on(server).await;
        let store = MysqlStore::builder().pool_size(2).connect(&fresh.url).await.unwrap();
        store.migrate().await.unwrap();
        let jobs: Vec<[NewJob; 1]> = (0..50)
            .map(|n| [NewJob::builder(format!("q{}", n % 7), "work").payload(&n).build().unwrap()])
            .collect();
        // No statement can begin before all fifty have called: the pool has two connections, and both are taken.
        let taken = [store.pool().get().await.unwrap(), store.pool().get().await.unwrap()];
        let mut calls: Vec<_> = jobs.iter().map(|job| store.enqueue(job)).collect();
        for call in &mut calls {
            assert!(call.now_or_never().is_none(), "{server}: a connection was left");
        }
        drop(taken);
        let answers = join_all(calls).await;
        let (mut ids, mut times) = (BTreeSet::<JobId>::new(), BTreeSet::new());
        for (answer, [job]) in answers.into_iter().zip(&jobs) {
            let [enqueued] = answer.unwrap().try_into().unwrap();
            ids.insert(enqueued.id);
            let stored = store.get(enqueued.id).await.unwrap().unwrap().live().unwrap();
            assert_eq!(
                (&stored.queue, &stored.payload),
                (job.queue(), job.payload()),
                "somebody else's answer"
            );
            times.insert(stored.created_at);
        }
        assert_eq!(ids.len(), 50);
        assert!(times.len() <= 3, "{server}: two go at once, and all who wait go together: {times:?}");
        fresh.drop().await;
    }
}
