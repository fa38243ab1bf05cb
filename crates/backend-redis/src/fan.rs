//! Calls that go to several shards at once.

use futures_util::future::join_all;
use leasehold_core::{Result, StoreError};

/// Waits for writes to several shards. If some were done and others not, nobody can say that nothing happened: that is
/// [`StoreError::Unknown`].
pub(crate) async fn writes<T>(
    operation: &'static str,
    calls: impl IntoIterator<Item = impl Future<Output = Result<T>>>,
) -> Result<Vec<T>> {
    let mut done = Vec::new();
    let mut errors = Vec::new();
    for answer in join_all(calls).await {
        match answer {
            Ok(answer) => done.push(answer),
            Err(error) => errors.push(error),
        }
    }
    let worst = errors.iter().position(StoreError::is_unknown).unwrap_or_default();
    match errors.into_iter().nth(worst) {
        None => Ok(done),
        Some(error) if done.is_empty() || error.is_unknown() => Err(error),
        Some(error) => Err(StoreError::unknown(operation, error)),
    }
}

/// The same, where each call answers some items of one list: the answers in the order of the list.
pub(crate) async fn answers<T: Clone>(
    operation: &'static str,
    missing: T,
    count: usize,
    calls: impl IntoIterator<Item = impl Future<Output = Result<(Vec<usize>, Vec<T>)>>>,
) -> Result<Vec<T>> {
    let mut all = vec![missing; count];
    for (places, answers) in writes(operation, calls).await? {
        for (place, answer) in places.into_iter().zip(answers) {
            all[place] = answer;
        }
    }
    Ok(all)
}

/// The next part of a write that takes several scripts. If it has failed and others were done, that is [`StoreError::Unknown`].
pub(crate) fn next<T>(operation: &'static str, part: Result<T>, others_were_done: bool) -> Result<T> {
    match part {
        Err(error) if others_were_done && !error.is_unknown() => Err(StoreError::unknown(operation, error)),
        part => part,
    }
}

/// Waits for calls that are worth something even if others fail. The error, if there is nothing else.
pub(crate) async fn some<T>(
    calls: impl IntoIterator<Item = impl Future<Output = Result<Vec<T>>>>,
) -> Result<Vec<T>> {
    let mut all = Vec::new();
    let mut failure = None;
    for answer in join_all(calls).await {
        match answer {
            Ok(answer) => all.extend(answer),
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) if all.is_empty() => Err(error),
        Some(error) => {
            tracing::warn!(%error, "a shard did not answer; the others did");
            Ok(all)
        }
        None => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unavailable() -> StoreError {
        StoreError::unavailable("test", "down")
    }

    async fn of(answers: Vec<Result<u32>>) -> Result<Vec<u32>> {
        writes("test", answers.into_iter().map(std::future::ready)).await
    }

    #[tokio::test]
    async fn a_write_that_was_done_in_part_is_unknown() {
        assert_eq!(of(vec![Ok(1), Ok(2)]).await.unwrap(), [1, 2]);
        assert!(of(vec![Ok(1), Err(unavailable())]).await.unwrap_err().is_unknown());
        assert!(of(vec![Err(unavailable()), Err(unavailable())]).await.unwrap_err().is_retryable());
        let unknown = StoreError::unknown("test", "lost");
        assert!(of(vec![Err(unavailable()), Err(unknown)]).await.unwrap_err().is_unknown());
        assert!(next::<()>("test", Err(unavailable()), false).unwrap_err().is_retryable());
        assert!(next::<()>("test", Err(unavailable()), true).unwrap_err().is_unknown());
    }

    #[tokio::test]
    async fn what_some_have_is_not_thrown_away() {
        let calls = |answers: Vec<Result<Vec<u32>>>| some(answers.into_iter().map(std::future::ready));
        assert_eq!(calls(vec![Ok(vec![1]), Err(unavailable())]).await.unwrap(), [1]);
        assert!(calls(vec![Ok(vec![]), Err(unavailable())]).await.unwrap_err().is_retryable());
    }
}
