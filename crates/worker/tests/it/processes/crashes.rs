//! Workers die at any moment and at named points, or are stopped for longer than their leases. Whatever happens, each
//! transactional job has its effect once, no job is lost, and no verdict counts that came after its lease was lost.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use leasehold_core::Store;

use super::child::{Note, Pay};
use super::dying::Point;
use super::factory::{Factory, LEASE, PATIENCE, Process, url};

/// How often each named death is died.
const ROUNDS: usize = 3;
const KILLS: usize = 12;
const STOPS: usize = 3;
/// How a process ends that dies at a named point.
const ABORT: i32 = 6;
/// Jobs that are added whenever few are left.
const JOBS: usize = 400;

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_die_and_stand_still_lose_nothing_and_do_nothing_twice() {
    let factory = Factory::new(url()).await;
    let mut chaos = Chaos { factory: &factory, jobs: 0, started: 0 };
    chaos.run().await;
    let jobs = chaos.jobs;
    factory.until_nothing_is_left().await;
    factory.check(jobs).await;
    // Nobody failed: every lease but the last was taken away, or given back because its claim was answered too late.
    let uneven = "SELECT count(*) FROM {schema}.job_history h WHERE lease_epoch <> 2 * attempts - 1
                  AND NOT EXISTS (SELECT FROM {schema}.given_back g WHERE g.job = h.id)";
    assert_eq!(factory.number(uneven).await, 0, "attempts and leases do not add up");
    let leases = factory.number("SELECT sum(lease_epoch)::bigint FROM {schema}.job_history").await;
    assert!(leases > jobs as i64, "no lease was ever lost: the test tests nothing");
}

struct Chaos<'a> {
    factory: &'a Factory,
    jobs: usize,
    started: usize,
}

impl Chaos<'_> {
    /// One worker dies at every named point in turn; another is killed now and then, and made to stand still.
    async fn run(&mut self) {
        let mut deaths: Vec<Point> = (0..ROUNDS).flat_map(|_| Point::ALL).collect();
        let (mut kills, mut stops) = (0, 0);
        let start = Instant::now();
        let mut dying = self.start(deaths.pop());
        let mut other = self.start(None);
        let mut next = self.soon();
        while !deaths.is_empty() || kills < KILLS || stops < STOPS {
            assert!(start.elapsed() < PATIENCE, "{} deaths, {kills} kills, {stops} stops", deaths.len());
            self.more_jobs().await;
            if let Some(status) = dying.ended() {
                assert_eq!(status.signal(), Some(ABORT), "a worker ended by itself: {:#?}", dying.log());
                dying = self.start(deaths.pop());
            }
            if Instant::now() >= next && kills >= 4 * (stops + 1) && stops < STOPS {
                self.stand_still(&other).await;
                stops += 1;
                next = self.soon();
            } else if Instant::now() >= next {
                other.kill();
                kills += 1;
                other = self.start(None);
                next = self.soon();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let last = self.start(None);
        self.factory.until_nothing_is_left().await;
        for mut process in [other, last] {
            process.signal("TERM");
            assert!(process.until_ended(PATIENCE).await.success());
        }
    }

    fn start(&mut self, death: Option<Point>) -> Process {
        self.started += 1;
        let mut orders = self.factory.orders(&format!("worker-{}", self.started));
        orders.death = death.map(|point| (point, fastrand::u32(1..20)));
        self.factory.start(&orders)
    }

    /// Stops it for three leases by the store's clock, once it holds something.
    async fn stand_still(&self, process: &Process) {
        let held = format!("SELECT count(*) FROM {{schema}}.job_queue WHERE locked_by = '{}'", process.name);
        self.factory.until(&held, |held| held > 0).await;
        process.signal("STOP");
        let until = self.factory.store.now().await.unwrap() + 3 * LEASE;
        let past = format!("SELECT (statement_timestamp() > '{}')::int::bigint", until.to_rfc3339());
        self.factory.until(&past, |past| past == 1).await;
        process.signal("CONT");
    }

    async fn more_jobs(&mut self) {
        let live = self.factory.number("SELECT count(*) FROM {schema}.job_queue").await;
        if live < JOBS as i64 / 2 {
            self.factory.enqueue(JOBS / 2, |_| Pay).await;
            // Some take longer than a lease.
            let takes =
                |n| if n % 50 == 0 { LEASE + LEASE / 2 } else { Duration::from_millis(fastrand::u64(..20)) };
            self.factory.enqueue(JOBS / 2, |n| Note { takes: takes(n) }).await;
            self.jobs += JOBS;
        }
    }

    fn soon(&self) -> Instant {
        Instant::now() + Duration::from_millis(fastrand::u64(200..700))
    }
}
