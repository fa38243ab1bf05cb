//! What a handler and a layer are told by their context.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_worker::{Context, Execution};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tower::util::MapRequestLayer;

use crate::support::{Work, enqueue, finished, store, worker};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_handler_is_told_that_its_worker_stops() {
    let store = store();
    enqueue(&store, 1).await;
    let told: Arc<Mutex<Vec<[bool; 2]>>> = Arc::default();
    let handler = async |_: Work, context: Context<Arc<Mutex<Vec<[bool; 2]>>>>| {
        let say = || context.state().lock().unwrap().push([context.is_stopping(), context.is_cancelled()]);
        say();
        context.stopping().await;
        say();
    };
    let worker = worker(&store).state(Arc::clone(&told)).handle::<Work>(handler).start().unwrap();
    sleep(SECOND).await;
    assert_eq!(*told.lock().unwrap(), [[false, false]]);
    worker.shutdown(SECOND).await.unwrap();
    assert_eq!(*told.lock().unwrap(), [[false, false], [true, false]]);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_is_given_up_is_cancelled() {
    type Given = Arc<Mutex<Option<Context<()>>>>;
    let (store, given) = (store(), Given::default());
    enqueue(&store, 1).await;
    let kept = Arc::clone(&given);
    let handler = move |_: Work, context: Context<()>| {
        kept.lock().unwrap().get_or_insert(context);
        std::future::pending::<()>()
    };
    let worker = worker(&store).timeout(SECOND).handle::<Work>(handler).start().unwrap();
    sleep(SECOND / 2).await;
    let is_cancelled = || given.lock().unwrap().as_ref().map(Context::is_cancelled);
    assert_eq!(is_cancelled(), Some(false));
    sleep(SECOND).await;
    assert_eq!(is_cancelled(), Some(true));
    worker.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_layer_sees_the_job_and_the_token_of_its_handler() {
    let store = store();
    enqueue(&store, 1).await;
    let seen: Arc<Mutex<Vec<(String, CancellationToken)>>> = Arc::default();
    let keep = Arc::clone(&seen);
    let look = MapRequestLayer::new(move |execution: Execution| {
        keep.lock().unwrap().push((format!("{execution:?}"), execution.cancelled().clone()));
        execution
    });
    let handler = async |_: Work, context: Context<()>| {
        if context.attempt() == 1 {
            std::future::pending::<()>().await;
        }
    };
    let worker = worker(&store).timeout(SECOND).handle::<Work>(handler).layer(look).start().unwrap();
    finished(&store, 1).await;
    let seen: Vec<_> =
        seen.lock().unwrap().iter().map(|(shown, token)| (shown.clone(), token.is_cancelled())).collect();
    let shown = || "Execution { job: JobId(1), .. }".to_owned();
    assert_eq!(seen, [(shown(), true), (shown(), false)]);
    worker.shutdown(Duration::ZERO).await.unwrap();
}
