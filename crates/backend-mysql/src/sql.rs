//! The statements, with the prefix of the tables put in.
//!
//! This is the one place where SQL text is changed: `{prefix}` becomes a [`TablePrefix`], which was checked; a list gets its
//! direction and its queues; and `{list}`, or a whole statement, is repeated. There are few numbers of repetitions, so that
//! there are few texts to be kept prepared: what is too much is filled up.

use std::sync::{Arc, OnceLock};

use leasehold_core::{Direction, Queues};
use leasehold_sql::TablePrefix;

/// How often something is repeated: each number is a statement that every connection keeps prepared. Lists are filled up with an
/// argument, which costs little, so that they need few numbers. 128 is there for those who claim a hundred jobs at a time.
const LENGTHS: [usize; 9] = [1, 4, 16, 64, 128, 256, 1024, 4096, 16_384];
/// A statement that is repeated as a whole does the work once more for each repetition.
const REPETITIONS: [usize; 15] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384];

/// The largest number of rows of a statement, which has room for 65,535 arguments.
const MOST_ROWS: usize = 4096;
const ROW_TEXTS: usize = 26;

/// A statement in which something is repeated.
pub(crate) struct Repeated {
    text: String,
    /// What is repeated; the whole statement, if there is no `{list}` in it.
    item: String,
    sizes: &'static [usize],
    texts: [OnceLock<String>; REPETITIONS.len()],
}

impl Repeated {
    fn new(text: String, item: impl Into<String>) -> Self {
        let sizes: &[usize] = if text.contains("{list}") { &LENGTHS } else { &REPETITIONS };
        Self { text, item: item.into(), sizes, texts: [const { OnceLock::new() }; REPETITIONS.len()] }
    }

    /// The text for `count` items or more, and for how many.
    pub(crate) fn of(&self, count: usize) -> (&str, usize) {
        let place = self.sizes.partition_point(|size| *size < count).min(self.sizes.len() - 1);
        let size = self.sizes[place];
        (self.texts[place].get_or_init(|| self.repeat(size)), size)
    }

    fn repeat(&self, size: usize) -> String {
        if self.text.contains("{list}") {
            let list = vec![self.item.as_str(); size].join(",");
            return self.text.replace("{list}", &list);
        }
        vec![self.text.as_str(); size].join(" UNION ALL ")
    }
}

/// A statement with a row for each of so many jobs. Jobs cannot be filled up, so there is a text for each number of two binary
/// digits and zeros after them: few texts, and few statements for any number.
pub(crate) struct Rows {
    text: String,
    texts: [OnceLock<String>; ROW_TEXTS],
}

impl Rows {
    fn new(text: String) -> Self {
        Self { text, texts: [const { OnceLock::new() }; ROW_TEXTS] }
    }

    /// The largest number of rows up to `count`, and up to [`MOST_ROWS`], for which there is a text.
    pub(crate) fn round_down(count: usize) -> usize {
        let count = count.min(MOST_ROWS);
        let zeros = count.max(1).ilog2().saturating_sub(1);
        count >> zeros << zeros
    }

    /// The text for such a number.
    pub(crate) fn of(&self, count: usize) -> &str {
        let zeros = count.max(1).ilog2().saturating_sub(1) as usize;
        let place = (2 * zeros + (count >> zeros)).min(ROW_TEXTS - 1);
        self.texts[place].get_or_init(|| self.text.replace("{list}", &vec![ROW; count].join(",")))
    }
}

/// Lists of queues as `{queues}` can say them.
#[derive(Clone, Copy)]
enum Wording {
    All,
    One,
    Many,
    Between,
}

const WORDINGS: [&str; 4] = [
    "1 = 1",
    "j.queue_name = ?",
    "j.queue_name IN (SELECT n.name FROM JSON_TABLE(?, '$[*]' COLUMNS \
     (name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PATH '$')) n)",
    "j.queue_name >= ? AND j.queue_name < ?",
];

impl Wording {
    fn of(queues: &Queues) -> Self {
        match queues {
            Queues::Named(names) if names.len() == 1 => Self::One,
            Queues::Named(_) => Self::Many,
            Queues::Matching(prefix) if prefix.as_str().is_empty() => Self::All,
            Queues::Matching(_) => Self::Between,
        }
    }
}

/// A statement about queues, in each wording.
pub(crate) struct Worded([String; 4]);

impl Worded {
    fn new(text: &str) -> Self {
        let named = |index: usize| {
            let by = if index == Wording::One as usize { "job_queue_fifo" } else { "PRIMARY" };
            text.replace("{queues}", WORDINGS[index]).replace("{index}", by)
        };
        Self([0, 1, 2, 3].map(named))
    }

    pub(crate) fn of(&self, queues: &Queues) -> &str {
        &self.0[Wording::of(queues) as usize]
    }
}

macro_rules! statements {
    (plain: $($plain:ident),+; listed: $($listed:ident),+; repeated: $($repeated:ident),+; worded: $($worded:ident),+;) => {
        /// Every statement, ready to be run.
        pub(crate) struct Statements {
            $(pub(crate) $plain: String,)+
            $(pub(crate) $listed: Repeated,)+
            $(pub(crate) $repeated: Repeated,)+
            $(pub(crate) $worded: Worded,)+
            pub(crate) create_limits: Repeated,
            pub(crate) hold_keys: Repeated,
            pub(crate) take_keys: Repeated,
            pub(crate) forget_unique: Repeated,
            pub(crate) enqueue: Rows,
            pub(crate) enqueue_one: String,
            /// Whether the server tells what it has inserted.
            pub(crate) has_returning: bool,
            jobs: [Worded; 2],
            history: [Worded; 2],
        }

        impl Statements {
            /// The statements for the tables with this prefix, on a server that knows `INSERT … RETURNING` or does not.
            pub(crate) fn new(prefix: &TablePrefix, has_returning: bool) -> Arc<Self> {
                let insert = |text| {
                    let returning = if has_returning { " RETURNING id" } else { "" };
                    put_in(prefix, text) + returning
                };
                Arc::new(Self {
                    $($plain: put_in(prefix, include_str!(concat!("../queries/", stringify!($plain), ".sql"))),)+
                    $($listed: Repeated::new(
                        put_in(prefix, include_str!(concat!("../queries/", stringify!($listed), ".sql"))), "?"),)+
                    $($repeated: Repeated::new(
                        put_in(prefix, include_str!(concat!("../queries/", stringify!($repeated), ".sql"))), ""),)+
                    $($worded: Worded::new(
                        &put_in(prefix, include_str!(concat!("../queries/", stringify!($worded), ".sql")))),)+
                    create_limits: Repeated::new(put_in(prefix, include_str!("../queries/create_limits.sql")), "(?)"),
                    hold_keys: Repeated::new(put_in(prefix, include_str!("../queries/hold_keys.sql")), "(?,?,0)"),
                    take_keys: Repeated::new(put_in(prefix, include_str!("../queries/take_keys.sql")), "(?,?,?)"),
                    forget_unique: Repeated::new(put_in(prefix, include_str!("../queries/forget_unique.sql")), "(?,?)"),
                    enqueue: Rows::new(insert(include_str!("../queries/enqueue.sql"))),
                    enqueue_one: insert(include_str!("../queries/enqueue_one.sql")),
                    has_returning,
                    jobs: both_ways(&put_in(prefix, include_str!("../queries/jobs.sql"))),
                    history: both_ways(&put_in(prefix, include_str!("../queries/history.sql"))),
                })
            }
        }
    };
}

/// One job of `enqueue.sql`.
const ROW: &str = "(?,?,?,?,?,?,?,?,?,?,1)";

statements!(
    plain: buckets, due, due_queues, empty_bucket, finish_each, finished, finished_queues, held_queues, idle_limits, inserted, is_finished,
        is_open, is_open_policies, job, keeps_text, largest, later_queues, lock_in, newer, newest, now, old, old_of, once, passed_keys, pause, promote, queue_of, queues, ready_queues, receipts, remove, remove_empty,
        remove_policy, requeue, resume, retry_later, rules, set_bucket, set_policy, skip_ids, stuck, used_keys;
    listed: buckets_of, complete, complete_free, completed, extend, finish_same, forget, forget_keys, forget_limits, held, held_free, known_limits, lease, limits, live, lock, lock_dead,
        lock_due, lock_limits, move_finished, raise_limits, redrive, seen, still_live;
    repeated: exhausted, head, heads, leased, taken, taken_now, try_keys;
    worded: dead, stats;
);

impl Statements {
    pub(crate) fn jobs(&self, queues: &Queues, direction: Direction) -> &str {
        self.jobs[place(direction)].of(queues)
    }

    pub(crate) fn history(&self, queues: &Queues, direction: Direction) -> &str {
        self.history[place(direction)].of(queues)
    }
}

/// `text` with the prefix of the tables in it, and without comments, which need not travel.
pub(crate) fn put_in(prefix: &TablePrefix, text: &str) -> String {
    let bare = text.lines().map(|line| line.split("--").next().unwrap_or_default().trim());
    let bare: Vec<&str> = bare.filter(|line| !line.is_empty()).collect();
    bare.join("\n").replace("{prefix}", prefix.as_str())
}

fn both_ways(text: &str) -> [Worded; 2] {
    [("ASC", ">"), ("DESC", "<")].map(|(direction, beyond)| {
        Worded::new(&text.replace("{direction}", direction).replace("{beyond}", beyond))
    })
}

fn place(direction: Direction) -> usize {
    match direction {
        Direction::OldestFirst => 0,
        Direction::NewestFirst => 1,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests may")]
mod tests {
    use super::*;

    #[test]
    fn lists_have_few_lengths() {
        let sql = Statements::new(&TablePrefix::new("app_").unwrap(), false);
        let (text, size) = sql.raise_limits.of(3);
        assert!(text.starts_with("UPDATE app_job_queue_limit ") && text.contains(" IN (?,?,?,?) "), "{text}");
        assert_eq!(size, 4);
        assert_eq!(sql.leased.of(2).0.matches(" UNION ALL ").count(), 1);
    }

    #[test]
    fn rows_are_inserted_in_few_statements_of_few_lengths() {
        let sql = Statements::new(&TablePrefix::default(), true);
        let mut lengths = std::collections::BTreeSet::new();
        for count in 1..=10_000 {
            let (mut left, mut statements) = (count, 0);
            while left > 0 {
                let size = Rows::round_down(left);
                assert_eq!(sql.enqueue.of(size).matches("(?,").count(), size);
                lengths.insert(size);
                (left, statements) = (left - size, statements + 1);
            }
            assert!(statements <= 8, "{count} rows are {statements} statements");
        }
        assert!(lengths.len() < ROW_TEXTS && lengths.last() == Some(&MOST_ROWS));
        assert!(sql.enqueue.of(1).ends_with(" RETURNING id"));
    }

    #[test]
    fn no_comment_travels_and_nothing_is_left_to_be_put_in() {
        let sql = Statements::new(&TablePrefix::default(), false);
        for text in [&sql.requeue, &sql.rules, &sql.stuck] {
            assert!(!text.contains("--") && !text.contains('{'), "{text}");
        }
        assert!(sql.jobs(&Queues::all(), Direction::NewestFirst).contains("ORDER BY j.id DESC"));
    }
}
