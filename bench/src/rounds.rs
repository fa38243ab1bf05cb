//! Measuring again and again.

use crate::{Measured, Rates, Result};

/// The rates of each measure, round by round: what disturbs the machine for a while disturbs all of them. Tells how far it is.
///
/// # Errors
/// The first failure of a measure.
pub async fn rounds<M: Measured + Copy>(
    measures: &[M],
    count: usize,
    measure_once: impl AsyncFn(M) -> Result<Rates>,
) -> Result<Vec<(M, Vec<Rates>)>> {
    let mut rounds: Vec<_> = measures.iter().map(|measure| (*measure, Vec::new())).collect();
    for round in 1..=count {
        for (measure, rates) in &mut rounds {
            eprint!("round {round} of {count}: {:<15} … ", measure.name());
            let measured = measure_once(*measure).await?;
            eprintln!("ours {:>8.0}, limit {:>8.0}", measured.ours, measured.limit);
            rates.push(measured);
        }
    }
    Ok(rounds)
}

/// The measure with this name.
///
/// # Errors
/// If none of them has it.
pub fn named<M: Measured + Copy>(measures: &[M], name: &str) -> Result<M> {
    let found = measures.iter().copied().find(|measure| measure.name() == name);
    found.ok_or_else(|| format!("{name} is not measured: see docs/benchmarks.md").into())
}
