//! Random sequences of operations, beside a model of the contract.
//!
//! After every step the whole store is compared with what the contract says it must hold. A sequence that fails is shrunk
//! to a small one and printed in a form that can be played again:
//! `LEASEHOLD_REPLAY='[…]' cargo test --test conformance -- model`.

mod operation;
mod play;
mod reference;

use std::cell::RefCell;
use std::time::{Duration, Instant};

use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use tokio::runtime::Handle;

pub use operation::{Operation, Planned, Rule, Sentence};

use crate::check::checks;
use crate::failure::{Outcome, Problem};
use crate::stage::Stage;
use operation::{Menu, sequence};

checks! { "model":
    plain_sequences [C3];
    sequences_with_policies [C3] needs Policies;
    sequences_with_limits [C3] needs Policies, ConcurrencyLimit, Fifo;
    sequences_with_transactions [C3] needs Transactions;
}

const PLAIN: Menu = Menu { policies: false, limits: false, transactions: false };

/// Where a failing sequence is given back to be played again.
const REPLAY: &str = "LEASEHOLD_REPLAY";

/// After this time no more sequences are tried.
const TIME: Duration = Duration::from_secs(40);

async fn plain_sequences(stage: Stage) -> Outcome {
    explore(stage, PLAIN).await
}

async fn sequences_with_policies(stage: Stage) -> Outcome {
    explore(stage, Menu { policies: true, ..PLAIN }).await
}

async fn sequences_with_limits(stage: Stage) -> Outcome {
    explore(stage, Menu { policies: true, limits: true, ..PLAIN }).await
}

async fn sequences_with_transactions(stage: Stage) -> Outcome {
    explore(stage, Menu { transactions: true, ..PLAIN }).await
}

async fn explore(stage: Stage, menu: Menu) -> Outcome {
    if let Ok(text) = std::env::var(REPLAY) {
        let sequence: Vec<Operation> =
            serde_json::from_str(&text).map_err(|error| Problem::Harness(error.into()))?;
        return play::play(&stage, &sequence).await.map_err(|problem| told(problem, &sequence));
    }
    let handle = Handle::current();
    let search = tokio::task::spawn_blocking(move || search(&stage, menu, &handle));
    search.await.map_err(|error| Problem::Harness(error.into()))?
}

/// Tries random sequences until one fails, and shrinks that one. On a slow machine it tries fewer: a check has a time limit.
fn search(stage: &Stage, menu: Menu, handle: &Handle) -> Outcome {
    let config = Config {
        cases: stage.model_cases(),
        failure_persistence: None,
        max_shrink_iters: 4096,
        max_shrink_time: 60_000,
        ..Config::default()
    };
    let started = Instant::now();
    // The problem of the smallest failing sequence so far.
    let last = RefCell::new(None);
    let result = TestRunner::new(config).run(&sequence(menu), |sequence| {
        if last.borrow().is_none() && started.elapsed() > TIME {
            return Ok(());
        }
        handle.block_on(play::play(stage, &sequence)).map_err(|problem| {
            let reason = format!("{problem:?}");
            *last.borrow_mut() = Some(problem);
            TestCaseError::fail(reason)
        })
    });
    match (result, last.into_inner()) {
        (Ok(()), _) => Ok(()),
        (Err(TestError::Fail(_, sequence)), Some(problem)) => Err(told(problem, &sequence)),
        (Err(error), _) => Err(Problem::Harness(error.to_string().into())),
    }
}

/// The problem, with the sequence that shows it.
fn told(problem: Problem, sequence: &[Operation]) -> Problem {
    let replay = serde_json::to_string(sequence).unwrap_or_else(|error| error.to_string());
    let steps: Vec<_> = sequence.iter().map(|operation| format!("\n    {operation:?}")).collect();
    let story = format!("\n  sequence:{}\n  replay:   {REPLAY}='{replay}'", steps.concat());
    match problem {
        Problem::Broken(clause, observed) => Problem::Broken(clause, format!("{observed}{story}")),
        Problem::Surprise(observed) => Problem::Surprise(format!("{observed}{story}")),
        Problem::Store(error) => {
            let observed = format!("unexpected error: {}{story}", crate::failure::chain(&error));
            Problem::Broken(leasehold_core::contract::C3, observed)
        }
        other @ (Problem::Harness(_) | Problem::NotApplicable(_)) => other,
    }
}
