//! The scripts, and how one is called.

use std::sync::LazyLock;

use leasehold_core::{Backoff, Schedule};
use redis::{Script, ScriptInvocation, ToRedisArgs};

use crate::row;

macro_rules! scripts {
    ($($name:ident $(after $common:literal)?),+ $(,)?) => {
        $(pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(concat!($(include_str!($common),)? include_str!(concat!("../scripts/", stringify!($name), ".lua"))))
        });)+
    };
}

#[allow(non_upper_case_globals, reason = "they have the names of their files")]
pub(crate) mod scripts {
    use super::{LazyLock, Script};

    scripts! {
        enqueue after "../scripts/common.lua",
        dequeue after "../scripts/common.lua",
        settle after "../scripts/common.lua",
        heartbeat after "../scripts/common.lua",
        reclaim after "../scripts/common.lua",
        intervene after "../scripts/common.lua",
        redrive after "../scripts/common.lua",
        prune after "../scripts/common.lua",
        facts after "../scripts/common.lua",
        prune_ids after "../scripts/common.lua",
        directory,
        register,
        set_policy,
    }
}

/// One call of a script: its keys and arguments.
pub(crate) struct Call(ScriptInvocation<'static>);

impl Call {
    /// A call with nothing in it.
    pub(crate) fn new(script: &'static Script) -> Self {
        Self(script.prepare_invoke())
    }

    pub(crate) fn key(&mut self, key: impl ToRedisArgs) -> &mut Self {
        self.0.key(key);
        self
    }

    pub(crate) fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        self.0.arg(arg);
        self
    }

    /// What `schedule()` reads.
    pub(crate) fn schedule(&mut self, schedule: Schedule) -> &mut Self {
        match schedule {
            Schedule::Now => self.arg("now").arg(""),
            Schedule::After(delay) => self.arg("after").arg(micros(delay.get())),
            Schedule::At(time) => self.arg("at").arg(row::time_text(time.get())),
        }
    }

    /// What `read_backoff()` reads.
    pub(crate) fn backoff(&mut self, backoff: &Backoff) -> &mut Self {
        let [base, min, max] =
            [backoff.base(), backoff.min(), backoff.max()].map(|delay| micros(delay.get()));
        self.arg(base).arg(min).arg(max)
    }

    pub(crate) fn invocation(&self) -> &ScriptInvocation<'static> {
        &self.0
    }
}

/// Whole microseconds. No delay or lease has more of them than fit.
pub(crate) fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
