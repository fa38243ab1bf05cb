//! What the suite found out.

use std::fmt::Write;

use serde::Serialize;

use crate::check::Check;
use crate::failure::Failure;

/// What became of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The store kept the clauses.
    Passed,
    /// It did not.
    Failed(Failure),
    /// The backend does not promise what the check asks for.
    NotApplicable {
        /// What it does not promise.
        reason: String,
    },
}

/// One check and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// Its name, such as `race::racing_workers_share_no_job`.
    pub check: &'static str,
    /// The clauses that it proves.
    pub clauses: Vec<&'static str>,
    /// What became of it.
    pub outcome: Outcome,
}

impl CheckReport {
    pub(crate) fn new(check: &Check, outcome: Outcome) -> Self {
        Self { check: check.name, clauses: check.clauses.iter().map(|clause| clause.id).collect(), outcome }
    }
}

/// What became of every check that was run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The backend.
    pub backend: String,
    /// Its checks, in the order of the suite.
    pub checks: Vec<CheckReport>,
}

impl Report {
    pub(crate) fn new(backend: &str, checks: Vec<CheckReport>) -> Self {
        Self { backend: backend.to_owned(), checks }
    }

    /// Whether nothing failed.
    pub fn passed(&self) -> bool {
        self.failures().next().is_none()
    }

    /// What failed.
    pub fn failures(&self) -> impl Iterator<Item = &Failure> {
        self.checks.iter().filter_map(|report| match &report.outcome {
            Outcome::Failed(failure) => Some(failure),
            Outcome::Passed | Outcome::NotApplicable { .. } => None,
        })
    }

    /// A table for people: one line per check, then the failures in full.
    pub fn table(&self) -> String {
        let width = self.checks.iter().map(|report| report.check.len()).max().unwrap_or_default();
        let mut table = format!("conformance of {}\n", self.backend);
        for report in &self.checks {
            let clauses = report.clauses.join(" ");
            let (mark, note) = match &report.outcome {
                Outcome::Passed => ("ok", String::new()),
                Outcome::Failed(failure) => ("FAILED", format!("  {}", failure.clause.unwrap_or("harness"))),
                Outcome::NotApplicable { reason } => ("n/a", format!("  {reason}")),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(table, "{:<width$}  {mark:<6}  {clauses}{note}", report.check);
        }
        for failure in self.failures() {
            let _ = writeln!(table, "\n{failure}");
        }
        let count = |wanted: fn(&Outcome) -> bool| self.checks.iter().filter(|r| wanted(&r.outcome)).count();
        let passed = count(|outcome| matches!(outcome, Outcome::Passed));
        let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
        let _ = writeln!(
            table,
            "\n{passed} passed, {failed} failed, {} not applicable",
            self.checks.len() - passed - failed
        );
        table
    }

    /// The same for programs.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }
}
