//! The scripts, and how one is called.

use std::sync::LazyLock;

use leasehold_core::{Backoff, Schedule};
use redis::{Cmd, ToRedisArgs};

use crate::row;

/// A script: its text, and the name by which a server knows it.
pub(crate) struct Script {
    text: &'static str,
    hash: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, hash: redis::Script::new(text).get_hash().to_owned() }
    }
}

macro_rules! scripts {
    ($($name:ident: $($part:literal)+;)+) => {
        $(pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(concat!($(include_str!(concat!("../scripts/", $part, ".lua"))),+))
        });)+
    };
}

/// Each script is made of as little as it needs: a server goes through all of it with every call.
#[allow(non_upper_case_globals, reason = "they have the names of their files")]
pub(crate) mod scripts {
    use super::{LazyLock, Script};

    scripts! {
        enqueue: "common" "sequence" "enqueue";
        reserve: "common" "sequence" "reserve";
        dequeue: "common" "awake" "job" "heap" "dequeue";
        settle: "when_full" "common" "job" "backoff" "settle";
        heartbeat: "when_full" "common" "job" "heartbeat";
        reclaim: "when_full" "common" "job" "backoff" "reclaim";
        overdue: "common" "overdue";
        intervene: "common" "job" "intervene";
        redrive: "common" "redrive";
        prune: "common" "prune";
        prune_ids: "common" "prune_ids";
        facts: "common" "job" "facts";
        active: "common" "awake" "active";
        agenda: "common" "agenda";
        page: "common" "heap" "page";
        directory: "directory";
        stamp: "stamp";
        set_policy: "set_policy";
    }
}

/// One call of a script: its keys and arguments.
pub(crate) struct Call {
    script: &'static Script,
    keys: Vec<Vec<u8>>,
    args: Vec<Vec<u8>>,
}

impl Call {
    /// A call with nothing in it.
    pub(crate) fn new(script: &'static Script) -> Self {
        Self { script, keys: Vec::new(), args: Vec::new() }
    }

    pub(crate) fn key(&mut self, key: impl ToRedisArgs) -> &mut Self {
        key.write_redis_args(&mut self.keys);
        self
    }

    pub(crate) fn arg(&mut self, arg: impl ToRedisArgs) -> &mut Self {
        arg.write_redis_args(&mut self.args);
        self
    }

    /// What `schedule()` reads.
    pub(crate) fn schedule(&mut self, schedule: Schedule) -> &mut Self {
        let (mode, value) = schedule_words(schedule);
        self.arg(mode).arg(value)
    }

    /// What `read_backoff()` reads.
    pub(crate) fn backoff(&mut self, backoff: &Backoff) -> &mut Self {
        let [base, min, max] =
            [backoff.base(), backoff.min(), backoff.max()].map(|delay| micros(delay.get()));
        self.arg(base).arg(min).arg(max)
    }

    /// The command for a server that knows the script.
    pub(crate) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", &self.script.hash)
    }

    /// The command for one that does not; from then on it does.
    pub(crate) fn by_text(&self) -> Cmd {
        self.command("EVAL", self.script.text)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let bytes = self.keys.iter().chain(&self.args).map(Vec::len).sum::<usize>();
        let mut command =
            Cmd::with_capacity(3 + self.keys.len() + self.args.len(), bytes + script.len() + 16);
        command.arg(name).arg(script).arg(self.keys.len());
        for word in self.keys.iter().chain(&self.args) {
            command.arg(word.as_slice());
        }
        command
    }
}

/// The two words that `schedule()` reads.
pub(crate) fn schedule_words(schedule: Schedule) -> (&'static str, String) {
    match schedule {
        Schedule::Now => ("now", String::new()),
        Schedule::After(delay) => ("after", micros(delay.get()).to_string()),
        Schedule::At(time) => ("at", row::time_text(time.get())),
    }
}

/// Whole microseconds. No delay or lease has more of them than fit.
pub(crate) fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
