//! How long to wait before the next attempt.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bounded::{self, Delay};
use crate::invalid::Invalid;
use crate::limits;

/// `delay = clamp(base · 2^(attempts-1) · (1 ± jitter), min, max)`, a pure function.
///
/// ```
/// use leasehold_core::Backoff;
/// use std::time::Duration;
///
/// let backoff = Backoff::default();
/// assert_eq!(backoff.delay(3, 0.5).get(), Duration::from_secs(8)); // 2 s · 2², no jitter in the middle
/// assert_eq!(backoff.delay(u32::MAX, 0.5).get(), Duration::from_secs(3600));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Backoff {
    base: Delay,
    jitter: f64,
    min: Delay,
    max: Delay,
}

impl Backoff {
    /// A backoff that starts at `base` and spreads each delay by the share `jitter` to either side.
    ///
    /// # Errors
    /// [`Invalid`] with the field `backoff_base`, `backoff_jitter` (0 to 1), `backoff_min` or `backoff_max`
    /// (`min` to a hundred years).
    pub fn new(base: Duration, jitter: f64, min: Duration, max: Duration) -> Result<Self, Invalid> {
        let jitter = bounded::within("backoff_jitter", jitter, 0.0, 1.0)?;
        let base = Delay::new(base).map_err(|invalid| invalid.of("backoff_base"))?;
        let min = Delay::new(min).map_err(|invalid| invalid.of("backoff_min"))?;
        let max = bounded::duration("backoff_max", max, min.get(), limits::DELAY_MAX)?;
        let max = Delay::new(max).map_err(|invalid| invalid.of("backoff_max"))?;
        Ok(Self { base, jitter, min, max })
    }

    /// The delay after the attempt number `attempts`. `random` in 0 to 1 chooses the place within the jitter:
    /// 0 the shortest, 1 the longest; anything else counts as one half.
    pub fn delay(&self, attempts: u32, random: f64) -> Delay {
        let random = if (0.0..=1.0).contains(&random) { random } else { 0.5 };
        self.spread(attempts, self.jitter * (2.0 * random - 1.0))
    }

    /// The shortest and the longest delay after the attempt number `attempts`.
    pub fn bounds(&self, attempts: u32) -> (Delay, Delay) {
        (self.delay(attempts, 0.0), self.delay(attempts, 1.0))
    }

    /// The first delay, before jitter and clamping.
    pub fn base(&self) -> Delay {
        self.base
    }

    /// The share by which a delay is spread to either side.
    pub fn jitter(&self) -> f64 {
        self.jitter
    }

    /// No delay is shorter.
    pub fn min(&self) -> Delay {
        self.min
    }

    /// No delay is longer.
    pub fn max(&self) -> Delay {
        self.max
    }

    fn spread(&self, attempts: u32, share: f64) -> Delay {
        // 2^1023 is the largest power that a float holds; beyond it the product is infinite, or 0 · ∞ for no base.
        let doublings = attempts.saturating_sub(1).min(1023) as i32;
        let seconds = self.base.get().as_secs_f64() * 2_f64.powi(doublings) * (1.0 + share);
        let raw = Duration::try_from_secs_f64(seconds).unwrap_or(limits::DELAY_MAX).min(limits::DELAY_MAX);
        let delay = Delay::new(raw).unwrap_or(self.max);
        delay.clamp(self.min, self.max)
    }
}

impl Default for Backoff {
    /// 2 s, jitter 0.2, at least 1 s, at most 1 h.
    fn default() -> Self {
        let seconds = |seconds| Delay::new(Duration::from_secs(seconds)).unwrap_or(Delay::ZERO);
        Self { base: seconds(2), jitter: 0.2, min: seconds(1), max: seconds(3600) }
    }
}

#[derive(Deserialize)]
struct Unchecked {
    base: Duration,
    jitter: f64,
    min: Duration,
    max: Duration,
}

impl TryFrom<Unchecked> for Backoff {
    type Error = Invalid;
    fn try_from(unchecked: Unchecked) -> Result<Self, Invalid> {
        Self::new(unchecked.base, unchecked.jitter, unchecked.min, unchecked.max)
    }
}
