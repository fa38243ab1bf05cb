//! The statements, with the prefix of the tables put in.
//!
//! This is the one place where SQL text is changed: `{prefix}` becomes a [`TablePrefix`], which was checked, and a list
//! gets its direction.

use std::sync::Arc;

use leasehold_core::{Direction, Queues};

use leasehold_sql::TablePrefix;

macro_rules! statements {
    ($($name:ident),+ $(,)?) => {
        /// Every statement, ready to be run.
        pub(crate) struct Statements {
            $(pub(crate) $name: String,)+
            jobs: [String; 2],
            jobs_of_one: [String; 2],
            history: [String; 2],
        }

        impl Statements {
            /// The statements for the tables with this prefix.
            pub(crate) fn new(prefix: &TablePrefix) -> Arc<Self> {
                Arc::new(Self {
                    $($name: put_in(prefix, include_str!(concat!("../queries/", stringify!($name), ".sql"))),)+
                    jobs: both_ways(prefix, &jobs(ANY)),
                    jobs_of_one: both_ways(prefix, &jobs(ONE)),
                    history: both_ways(prefix, include_str!("../queries/history.sql")),
                })
            }
        }
    };
}

statements!(
    bucket,
    buckets,
    dead,
    due,
    enqueue,
    facts,
    finish,
    finished,
    finished_queues,
    forget,
    forget_keys,
    head,
    heartbeat,
    held,
    is_finished,
    job,
    largest,
    lease,
    leased,
    lock_in,
    move_finished,
    once,
    pause,
    pick,
    policies,
    promote,
    prune,
    queue_of,
    queues,
    receipts,
    redrive,
    remove,
    remove_bucket,
    remove_policy,
    requeue,
    resume,
    retry_later,
    set_bucket,
    set_policy,
    settle_done,
    skip_ids,
    stats,
    stuck,
    taken,
    turns,
);

impl Statements {
    pub(crate) fn jobs(&self, queues: &Queues, direction: Direction) -> &str {
        match queues {
            Queues::Named(names) if names.len() == 1 => &self.jobs_of_one[place(direction)],
            _ => &self.jobs[place(direction)],
        }
    }

    pub(crate) fn history(&self, direction: Direction) -> &str {
        &self.history[place(direction)]
    }
}

/// `text` with the prefix of the tables in it.
pub(crate) fn put_in(prefix: &TablePrefix, text: &str) -> String {
    text.replace("{prefix}", prefix.as_str())
}

const ANY: &str = "(?1 IS NULL OR j.queue_name IN (SELECT value FROM json_each(?1)))";
const ONE: &str = "j.queue_name = ?1 ->> 0";

/// A list of jobs, by the queues that are meant.
fn jobs(named: &str) -> String {
    include_str!("../queries/jobs.sql").replace("{named}", named)
}

fn both_ways(prefix: &TablePrefix, text: &str) -> [String; 2] {
    [("ASC", ">"), ("DESC", "<")].map(|(direction, beyond)| {
        put_in(prefix, text).replace("{direction}", direction).replace("{beyond}", beyond)
    })
}

fn place(direction: Direction) -> usize {
    match direction {
        Direction::OldestFirst => 0,
        Direction::NewestFirst => 1,
    }
}
