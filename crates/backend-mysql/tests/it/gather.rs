//! Single jobs that are enqueued at the same time share a statement.

use std::collections::BTreeSet;

use crate::support::{BOTH, Fresh};
use futures_util::future::join_all;
use leasehold_core::{JobId, NewJob, Store};

#[tokio::test]
async fn fifty_callers_are_three_statements() {
    for server in BOTH {
        let fresh = Fresh::on(server).await;
        let store = fresh.store().await;
        let jobs: Vec<[NewJob; 1]> = (0..50)
            .map(|n| [NewJob::builder(format!("q{}", n % 7), "work").payload(&n).build().unwrap()])
            .collect();
        let answers = join_all(jobs.iter().map(|job| store.enqueue(job))).await;
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
