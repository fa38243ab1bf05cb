use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use leasehold_core::JobId;
use tokio::sync::{Semaphore, mpsc};

use super::*;

/// Notes what it is asked to send, and waits for a permit each time.
struct Slow {
    sent: mpsc::UnboundedSender<Vec<String>>,
    permits: Semaphore,
    ids: AtomicI64,
}

fn slow() -> (Arc<Slow>, mpsc::UnboundedReceiver<Vec<String>>) {
    let (sent, sends) = mpsc::unbounded_channel();
    (Arc::new(Slow { sent, permits: Semaphore::new(0), ids: AtomicI64::new(0) }), sends)
}

#[async_trait]
impl Courier for Slow {
    async fn send(self: &Arc<Self>, jobs: &[NewJob]) -> Result<Vec<Enqueued>> {
        let kinds: Vec<String> = jobs.iter().map(|job| job.kind().to_string()).collect();
        self.sent.send(kinds.clone()).unwrap();
        self.permits.acquire().await.unwrap().forget();
        match kinds.iter().find(|kind| ["bad", "gone", "lost"].contains(&kind.as_str())).map(String::as_str) {
            Some("bad") => Err(StoreError::backend("enqueue", "no such thing")),
            Some("gone") => Err(StoreError::unavailable("enqueue", "no server")),
            Some(_) => Err(StoreError::unknown("enqueue", "no answer")),
            None => Ok(jobs.iter().map(|_| self.accept()).collect()),
        }
    }
}

impl Slow {
    fn accept(&self) -> Enqueued {
        Enqueued { id: JobId::new(self.ids.fetch_add(1, Ordering::Relaxed)), deduplicated: false }
    }
}

fn job(kind: &str) -> NewJob {
    NewJob::builder("q", kind).build().unwrap()
}

/// Enqueues each of these jobs from a task of its own, in this order.
fn callers(
    gatherer: &Arc<Gatherer>,
    courier: &Arc<Slow>,
    kinds: &[&str],
) -> Vec<tokio::task::JoinHandle<Result<Enqueued>>> {
    let spawn = |kind: &&str| {
        let (gatherer, courier, job) = (Arc::clone(gatherer), Arc::clone(courier), job(kind));
        tokio::spawn(async move { gatherer.enqueue(&courier, &job).await })
    };
    kinds.iter().map(spawn).collect()
}

#[tokio::test]
async fn who_comes_while_others_are_under_way_goes_together() {
    let ((courier, mut sends), gatherer) = (slow(), Gatherer::new(2));
    let callers = callers(&gatherer, &courier, &["a", "b", "c", "d", "e"]);
    assert_eq!(sends.recv().await.unwrap(), ["a"]);
    assert_eq!(sends.recv().await.unwrap(), ["b"]);
    courier.permits.add_permits(1);
    assert_eq!(sends.recv().await.unwrap(), ["c", "d", "e"]);
    courier.permits.add_permits(2);
    let mut ids = Vec::new();
    for caller in callers {
        ids.push(caller.await.unwrap().unwrap().id.get());
    }
    assert!(ids[2] < ids[3] && ids[3] < ids[4], "each has its own, in order: {ids:?}");
    assert_eq!(gatherer.state().flying, 0);
}

#[tokio::test]
async fn a_job_that_is_refused_is_refused_alone() {
    let ((courier, mut sends), gatherer) = (slow(), Gatherer::new(1));
    let callers = callers(&gatherer, &courier, &["a", "b", "bad", "c"]);
    assert_eq!(sends.recv().await.unwrap(), ["a"]);
    courier.permits.add_permits(10);
    let mut accepted = Vec::new();
    for caller in callers {
        accepted.push(caller.await.unwrap().is_ok());
    }
    assert_eq!(accepted, [true, true, false, true]);
    let mut sent = Vec::new();
    while let Ok(kinds) = sends.try_recv() {
        sent.push(kinds.join(" "));
    }
    assert_eq!(sent, ["b bad c", "b", "bad", "c"]);
}

#[tokio::test]
async fn what_is_not_known_is_repeated_for_nobody() {
    for (kind, is_unknown) in [("lost", true), ("gone", false)] {
        let ((courier, mut sends), gatherer) = (slow(), Gatherer::new(1));
        let callers = callers(&gatherer, &courier, &["a", "b", kind]);
        assert_eq!(sends.recv().await.unwrap(), ["a"]);
        courier.permits.add_permits(10);
        let mut answers = Vec::new();
        for caller in callers {
            answers.push(caller.await.unwrap());
        }
        assert!(answers[0].is_ok());
        for answer in &answers[1..] {
            let error = answer.as_ref().unwrap_err();
            assert_eq!(error.is_unknown(), is_unknown, "{error}");
            let cause = std::error::Error::source(error).unwrap().to_string();
            assert_eq!(cause, if is_unknown { "no answer" } else { "no server" });
        }
        assert_eq!(sends.recv().await.unwrap(), ["b", kind]);
        assert!(sends.try_recv().is_err());
    }
}

#[tokio::test]
async fn who_has_gone_away_is_not_sent_and_holds_up_nobody() {
    let ((courier, mut sends), gatherer) = (slow(), Gatherer::new(1));
    let mut callers = callers(&gatherer, &courier, &["a", "b", "c"]);
    assert_eq!(sends.recv().await.unwrap(), ["a"]);
    let (c, b, a) = (callers.pop().unwrap(), callers.pop().unwrap(), callers.pop().unwrap());
    for gone in [b, a] {
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
    }
    assert_eq!(sends.recv().await.unwrap(), ["c"]);
    courier.permits.add_permits(1);
    c.await.unwrap().unwrap();
    assert_eq!(gatherer.state().flying, 0);
}

#[tokio::test]
async fn a_group_is_bounded() {
    let ((courier, mut sends), gatherer) = (slow(), Gatherer::new(1));
    let kinds = vec!["a"; 2 + JOBS];
    let callers = callers(&gatherer, &courier, &kinds);
    assert_eq!(sends.recv().await.unwrap(), ["a"]);
    courier.permits.add_permits(10);
    for caller in callers {
        caller.await.unwrap().unwrap();
    }
    let mut sizes = Vec::new();
    while let Ok(kinds) = sends.try_recv() {
        sizes.push(kinds.len());
    }
    assert_eq!(sizes, [JOBS, 1]);
}

#[tokio::test]
async fn large_payloads_go_in_several_groups() {
    let payload = "x".repeat(BYTES / 2);
    let large = NewJob::builder("q", "large").payload(&payload).build().unwrap();
    let (answers, _callers): (Vec<_>, Vec<_>) = (0..5).map(|_| oneshot::channel()).unzip();
    let waiting = answers.into_iter().map(|answer| Waiting { job: large.clone(), answer }).collect();
    let mut state = State { flying: 1, waiting };
    let sizes: Vec<usize> = (0..4).map(|_| state.group().len()).collect();
    assert_eq!(sizes, [2, 2, 1, 0]);
}

/// Drops `runtime` on a thread of its own, so that a deadlock fails the test and does not hang it.
fn shut_down(runtime: tokio::runtime::Runtime) {
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(runtime);
        ended.send(()).unwrap();
    });
    end.recv_timeout(Duration::from_secs(20)).expect("the runtime shuts down");
}

fn runtimes() -> [tokio::runtime::Runtime; 2] {
    let flavours =
        [tokio::runtime::Builder::new_current_thread(), tokio::runtime::Builder::new_multi_thread()];
    flavours.map(|mut flavour| flavour.worker_threads(2).build().unwrap())
}

#[test]
fn a_runtime_shuts_down_while_jobs_are_under_way_and_others_wait() {
    for runtime in runtimes() {
        let ((courier, mut sends), gatherer) = (slow(), Gatherer::new(2));
        runtime.block_on(async {
            drop(callers(&gatherer, &courier, &["a", "b", "c", "d", "e"]));
            sends.recv().await.unwrap();
            sends.recv().await.unwrap();
            while gatherer.state().waiting.len() < 3 {
                tokio::task::yield_now().await;
            }
        });
        shut_down(runtime);
        assert_eq!(gatherer.state().flying, 0);
        assert_eq!(gatherer.state().waiting.len(), 0);
    }
}

#[test]
fn who_waits_in_another_runtime_sends_the_job_itself() {
    for runtime in runtimes() {
        let ((courier, mut sends), gatherer) = (slow(), Gatherer::new(1));
        runtime.block_on(async {
            drop(callers(&gatherer, &courier, &["a"]));
            assert_eq!(sends.recv().await.unwrap(), ["a"]);
        });
        let other = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let waiting = other.block_on(async {
            let waiting = callers(&gatherer, &courier, &["b", "c"]);
            while gatherer.state().waiting.len() < 2 {
                tokio::task::yield_now().await;
            }
            waiting
        });
        shut_down(runtime);
        courier.permits.add_permits(2);
        for caller in waiting {
            assert!(other.block_on(caller).unwrap().is_ok());
        }
        assert_eq!(gatherer.state().flying, 0);
    }
}
