//! Faults in the scripts of Redis.

use super::change::{Change, Conditions, comparisons};
use super::token::{Kind, Tokens};

/// Words that end a condition or stand before it.
const EDGES: [&str; 12] =
    ["then", "do", "end", "if", "elseif", "while", "until", "return", "local", "else", "function", "not"];

/// Commands that write.
const WRITES: [&str; 24] = [
    "HSET",
    "HDEL",
    "HINCRBY",
    "ZADD",
    "ZREM",
    "ZREMRANGEBYSCORE",
    "ZREMRANGEBYRANK",
    "ZREMRANGEBYLEX",
    "ZINCRBY",
    "SET",
    "DEL",
    "UNLINK",
    "INCR",
    "INCRBY",
    "EXPIRE",
    "PEXPIRE",
    "PERSIST",
    "RPUSH",
    "LPUSH",
    "LPOP",
    "SADD",
    "SREM",
    "PUBLISH",
    "SPUBLISH",
];

const CONDITIONS: Conditions = Conditions { is_edge };

/// Every fault of one script.
pub(super) fn changes(text: &str) -> Vec<Change> {
    let tokens = &Tokens::of(text);
    let mut changes = CONDITIONS.changes(tokens);
    changes.extend(comparisons(tokens));
    changes.extend(writes(tokens));
    changes.sort_by_key(Change::start);
    changes.dedup();
    changes
}

fn is_edge(tokens: &Tokens<'_>, place: usize) -> bool {
    tokens.is_any(place, &EDGES)
        || tokens.is_any(place, &[",", "=", ";"])
        || begins_a_statement(tokens, place)
}

/// Whether the token is the first of its line, and the line before is whole.
fn begins_a_statement(tokens: &Tokens<'_>, place: usize) -> bool {
    let Some(before) = place.checked_sub(1) else { return true };
    let between = tokens.span(before, before).end..tokens.span(place, place).start;
    let goes_on = ["and", "or", "not", "=", "==", "~=", "<", ">", "<=", ">=", "+", "-", "*", "/", "..", ","];
    tokens.text[between].contains('\n')
        && !tokens.is_any(before, &goes_on)
        && !tokens.is_any(place, &["and", "or", "..", "+", "-"])
}

/// A command that writes, and whose answer is of no interest.
fn writes(tokens: &Tokens<'_>) -> Vec<Change> {
    let change = |place: usize| {
        let command = tokens.word(place + 2).trim_matches(['\'', '"']);
        let is_text = tokens.get(place + 2)?.kind == Kind::Text;
        let is_used = place > 0
            && (tokens
                .is_any(place - 1, &["=", "(", ",", "return", "and", "or", "not", "{", "#", "..", "[", "+"])
                || tokens.is_any(place - 1, &["==", "~=", "<", ">", "<=", ">=", "if", "while", "-"]));
        if !tokens.is_any(place, &["redis.call", "redis.pcall"])
            || !is_text
            || !WRITES.contains(&command)
            || is_used
        {
            return None;
        }
        let depth = tokens.depth(place);
        let close = (place + 2..tokens.len()).find(|next| tokens.depth(*next) == depth)?;
        Some(Change::drop(tokens, &[tokens.span(place, close)]))
    };
    (0..tokens.len()).filter_map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        changes(text).iter().map(|change| change.apply(text)).collect()
    }

    #[test]
    fn a_script_loses_writes_and_parts_of_conditions() {
        let text = "local n = redis.call('ZREM', key, id)\nif n and due < now then\n  redis.call('HSET', key(id), 'a', 1)\nend\n";
        let found = faults(text);
        assert_eq!(
            found,
            [
                text.replace("n and due", "      due"),
                text.replace(" and due < now", "              "),
                text.replace("< now", "<=now"),
                text.replace("redis.call('HSET', key(id), 'a', 1)", &" ".repeat(35)),
            ]
        );
    }

    #[test]
    fn an_answer_that_is_used_is_kept() {
        assert!(faults("return redis.call('SET', 'a', 1)").is_empty());
        assert!(faults("redis.call('GET', 'a')").is_empty());
    }
}
