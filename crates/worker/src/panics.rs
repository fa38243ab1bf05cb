//! Panics of code that is not the worker's: handlers, stores, the metrics recorder, the tracing subscriber.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a panic carries.
pub(crate) type Payload = Box<dyn Any + Send>;

/// Makes a call whose panic ends nothing but the call itself. `None` if it panicked.
pub(crate) fn contain<T>(call: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => Some(value),
        Err(panic) => {
            discard(panic);
            None
        }
    }
}

/// The message of a panic.
pub(crate) fn message(panic: Payload) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    discard(panic);
    text.unwrap_or_else(|| "no message".to_owned())
}

/// Drops what a panic carries, which may panic again.
pub(crate) fn discard(panic: Payload) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        // Each drop could panic once more: this one is leaked.
        std::mem::forget(another);
    }
}

/// A line of the log. A subscriber that panics costs the line.
macro_rules! log {
    ($level:ident, $($line:tt)+) => {
        $crate::panics::contain(|| tracing::$level!($($line)+))
    };
}
pub(crate) use log;

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    struct Bomb(u32);

    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 > 0 {
                panic_any(Bomb(self.0 - 1));
            }
        }
    }

    #[test]
    fn a_payload_that_panics_when_dropped_is_contained() {
        for fuse in 0..4 {
            assert_eq!(contain(|| panic_any(Bomb(fuse))), None::<()>);
        }
        assert_eq!(contain(|| 1), Some(1));
    }

    #[test]
    fn a_message_is_told_whatever_its_type() {
        let panicked = |call: fn()| message(catch_unwind(call).unwrap_err());
        assert_eq!(panicked(|| panic!("one")), "one");
        assert_eq!(panicked(|| panic!("{}", 2)), "2");
        assert_eq!(panicked(|| panic_any(Bomb(1))), "no message");
    }
}
