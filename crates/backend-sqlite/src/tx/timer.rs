//! Waiting without a runtime: the store needs none, and must block no thread of the one that its caller has.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// Completes after `time`, whatever runtime polls it. If no thread can be had for it, it completes at once.
pub(super) async fn pause(time: Duration) {
    let Some(timer) = &*TIMER else { return };
    let (wake, woken) = oneshot::channel();
    timer.sleepers().push((Instant::now() + time, wake));
    timer.thread.unpark();
    // The timer is never dropped: an error cannot come of it.
    let _woken = woken.await;
}

static TIMER: LazyLock<Option<Timer>> = LazyLock::new(Timer::start);

/// One thread for all pauses of the process. It sleeps while there are none.
struct Timer {
    thread: Thread,
    sleepers: &'static Mutex<Sleepers>,
}

type Sleepers = Vec<(Instant, oneshot::Sender<()>)>;

impl Timer {
    fn start() -> Option<Self> {
        static SLEEPERS: Mutex<Sleepers> = Mutex::new(Vec::new());
        let thread =
            thread::Builder::new().name("leasehold-timer".to_owned()).spawn(|| run(&SLEEPERS)).ok()?;
        Some(Self { thread: thread.thread().clone(), sleepers: &SLEEPERS })
    }

    fn sleepers(&self) -> std::sync::MutexGuard<'_, Sleepers> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes each when its time has come.
fn run(sleepers: &Mutex<Sleepers>) {
    loop {
        let now = Instant::now();
        let mut waiting = sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        let (due, left): (Sleepers, Sleepers) = waiting.drain(..).partition(|(at, _)| *at <= now);
        let next = left.iter().map(|(at, _)| *at).min();
        *waiting = left;
        drop(waiting);
        for (_, wake) in due {
            // Its future may have been dropped meanwhile.
            let _gone = wake.send(());
        }
        match next {
            Some(next) => thread::park_timeout(next.saturating_duration_since(Instant::now())),
            None => thread::park(),
        }
    }
}
