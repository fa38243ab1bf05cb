//! Several suites in one test program, for a backend that runs on several servers.

use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Trial};

use crate::check::Check;
use crate::harness::Harness;
use crate::report::Outcome;

/// If this variable is set, [`Suites::part`] runs every check.
const LONG: &str = "LEASEHOLD_TEST_LONG";

/// Several suites in one test program. The cases of each carry its name: `mariadb::dequeue::…`.
///
/// One program links once and runs all cases in parallel; one program per server links as often as there are servers.
///
/// ```no_run
/// # use leasehold_conformance::{Harness, Suites};
/// # fn main_of<H: Harness>(mysql: H, mariadb: H) {
/// Suites::new().whole("mysql", mysql).part("mariadb", mariadb, &["enqueue", "race"]).main();
/// # }
/// ```
#[derive(Default)]
#[must_use = "nothing runs before `main`"]
pub struct Suites {
    trials: Vec<Trial>,
}

impl Suites {
    /// No suite yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds every check on this backend.
    pub fn whole<H: Harness>(self, name: &str, harness: H) -> Self {
        self.with(name, harness, |_| true)
    }

    /// Adds the checks of these groups on this backend: those that can differ from a server which runs the whole suite. Every
    /// check is run if the variable `LEASEHOLD_TEST_LONG` is set.
    pub fn part<H: Harness>(self, name: &str, harness: H, groups: &[&str]) -> Self {
        let all = std::env::var_os(LONG).is_some();
        self.with(name, harness, |check| all || groups.contains(&check.group()))
    }

    /// Runs the program: one named case per check and suite.
    pub fn main(self) -> ! {
        libtest_mimic::run(&Arguments::from_args(), self.trials).exit()
    }

    fn with<H: Harness>(mut self, name: &str, harness: H, wanted: impl Fn(&Check) -> bool) -> Self {
        let harness = Arc::new(harness);
        let checks = crate::checks().into_iter().filter(wanted);
        self.trials.extend(
            checks.map(|check| trial(format!("{name}::{}", check.name), Arc::clone(&harness), check)),
        );
        self
    }
}

/// One case of a test program.
pub(crate) fn trial<H: Harness>(name: String, harness: Arc<H>, check: Check) -> Trial {
    Trial::ignorable_test(name, move || match check.run(harness) {
        Outcome::Passed => Ok(Completion::Completed),
        Outcome::NotApplicable { reason } => Ok(Completion::ignored_with(reason)),
        Outcome::Failed(failure) => Err(failure.to_string().into()),
    })
}
