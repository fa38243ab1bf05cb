//! The statements, with the name of the schema put in.
//!
//! This is the one place where SQL text is changed: `{schema}` becomes the quoted name of a [`Schema`], which was
//! checked, and a list gets its direction.

use std::sync::Arc;

use leasehold_core::Direction;

use crate::schema::Schema;

macro_rules! statements {
    ($($name:ident),+ $(,)?) => {
        /// Every statement, ready to be sent.
        pub(crate) struct Statements {
            $(pub(crate) $name: String,)+
            jobs: [String; 2],
            history: [String; 2],
        }

        impl Statements {
            /// The statements for the tables in `schema`.
            pub(crate) fn new(schema: &Schema) -> Arc<Self> {
                Arc::new(Self {
                    $($name: put_in(schema, include_str!(concat!("../queries/", stringify!($name), ".sql"))),)+
                    jobs: both_ways(schema, include_str!("../queries/jobs.sql")),
                    history: both_ways(schema, include_str!("../queries/history.sql")),
                })
            }
        }
    };
}

statements!(
    create_limits,
    dequeue,
    dequeue_limited,
    dequeue_one,
    discard,
    enqueue,
    enqueue_keyed,
    facts,
    heartbeat,
    is_finished,
    notify,
    now,
    once,
    pause,
    policies,
    promote,
    prune,
    receipts,
    reclaim,
    record,
    redrive,
    remove_policy,
    reset_rates,
    resume,
    retry_later,
    set_policy,
    settle,
    settle_done,
    settle_same,
    stats,
    stuck,
);

impl Statements {
    pub(crate) fn jobs(&self, direction: Direction) -> &str {
        &self.jobs[place(direction)]
    }

    pub(crate) fn history(&self, direction: Direction) -> &str {
        &self.history[place(direction)]
    }
}

/// `text` with the name of the schema in it.
pub(crate) fn put_in(schema: &Schema, text: &str) -> String {
    text.replace("{schema}", &schema.quoted())
}

fn both_ways(schema: &Schema, text: &str) -> [String; 2] {
    [("ASC", ">"), ("DESC", "<")].map(|(direction, beyond)| {
        put_in(schema, text).replace("{direction}", direction).replace("{beyond}", beyond)
    })
}

fn place(direction: Direction) -> usize {
    match direction {
        Direction::OldestFirst => 0,
        Direction::NewestFirst => 1,
    }
}
