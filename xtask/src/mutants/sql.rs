//! Faults in statements, of the kinds that authors of statements make.

use std::ops::Range;

use super::change::{Change, Conditions, comparisons, is_connective};
use super::token::{Kind, Tokens};

/// Words that end a condition, a key of an order or an assignment.
const EDGES: [&str; 36] = [
    "where",
    "group",
    "order",
    "having",
    "limit",
    "offset",
    "for",
    "returning",
    "union",
    "set",
    "from",
    "join",
    "left",
    "right",
    "inner",
    "cross",
    "straight_join",
    "on",
    "when",
    "then",
    "else",
    "end",
    "loop",
    "values",
    "select",
    "into",
    "do",
    "with",
    "window",
    "if",
    "elsif",
    "while",
    "return",
    "lock",
    "as",
    "using",
];

const CONDITIONS: Conditions = Conditions { is_edge };

/// Every fault of one text.
pub(super) fn changes(text: &str) -> Vec<Change> {
    let tokens = &Tokens::of(text);
    let kinds: [fn(&Tokens<'_>) -> Vec<Change>; 7] =
        [conjuncts, conditions, orders, comparisons, columns, constants, clauses];
    let mut changes: Vec<Change> = kinds.iter().flat_map(|kind| kind(tokens)).collect();
    changes.sort_by_key(Change::start);
    changes.dedup();
    changes
}

fn is_edge(tokens: &Tokens<'_>, place: usize) -> bool {
    let is_call = tokens.is(place + 1, "(") && tokens.is_any(place, &["left", "right", "if"]);
    let is_distinct_from = tokens.is(place, "from") && place > 0 && tokens.is(place - 1, "distinct");
    let is_word = tokens.is_any(place, &EDGES) && !is_call && !is_distinct_from;
    is_word || tokens.is_any(place, &[",", ";", "$$"])
}

/// One conjunct, or one branch of an OR.
fn conjuncts(tokens: &Tokens<'_>) -> Vec<Change> {
    CONDITIONS.changes(tokens)
}

/// The whole of a condition that has one part only.
fn conditions(tokens: &Tokens<'_>) -> Vec<Change> {
    let change = |place: usize| {
        let last = CONDITIONS.last(tokens, place);
        if last == place || is_connective(tokens, last + 1) {
            return None;
        }
        if tokens.is_any(place, &["where", "having"]) {
            return Some(Change::drop(tokens, &[tokens.span(place, last)]));
        }
        is_join(tokens, place).then(|| Change::replace(tokens, tokens.span(place + 1, last), "TRUE"))?
    };
    (0..tokens.len()).filter_map(change).collect()
}

/// Whether an ON says how two tables are joined.
fn is_join(tokens: &Tokens<'_>, place: usize) -> bool {
    let depth = tokens.depth(place);
    let mut before = (0..place).rev().take_while(|before| tokens.depth(*before) >= depth);
    let nearest = before.find(|before| {
        tokens.depth(*before) == depth
            && tokens.is_any(*before, &["join", "straight_join", "on", "from", ";"])
    });
    tokens.is(place, "on")
        && nearest.is_some_and(|nearest| tokens.is_any(nearest, &["join", "straight_join"]))
}

/// The keys of each ORDER BY: one dropped, two swapped, the other direction.
fn orders(tokens: &Tokens<'_>) -> Vec<Change> {
    let mut changes = Vec::new();
    for place in (0..tokens.len()).filter(|place| tokens.is(*place, "order") && tokens.is(place + 1, "by")) {
        let keys = items(tokens, place + 2);
        match &keys[..] {
            [] => continue,
            [only] => changes.push(Change::drop(tokens, &[tokens.span(place, *only.end())])),
            several => changes.extend(
                (0..several.len()).map(|item| Change::drop(tokens, &[without(tokens, several, item)])),
            ),
        }
        for pair in keys.windows(2) {
            let [one, two] = [&pair[0], &pair[1]].map(|key| tokens.span(*key.start(), *key.end()));
            let swapped =
                [two.clone(), one.end..two.start, one.clone()].map(|range| &tokens.text[range]).concat();
            changes.extend(Change::replace(tokens, one.start..two.end, &swapped));
        }
        let ways = keys.iter().flat_map(|key| key.clone()).filter(|place| tokens.is(*place, "desc"));
        changes.extend(ways.filter_map(|place| Change::replace(tokens, tokens.span(place, place), "ASC")));
    }
    changes
}

/// One column of an INSERT, with its value, and one assignment of an UPDATE.
fn columns(tokens: &Tokens<'_>) -> Vec<Change> {
    let mut changes = Vec::new();
    for place in 0..tokens.len() {
        if tokens.is(place, "into") && tokens.is(place + 2, "(") {
            changes.extend(inserted(tokens, place + 3));
        }
        if tokens.is(place, "set") {
            let items = items(tokens, place + 1);
            let dropped = (0..items.len()).map(|item| Change::drop(tokens, &[without(tokens, &items, item)]));
            changes.extend(dropped.filter(|_| items.len() > 1));
        }
    }
    changes
}

fn inserted(tokens: &Tokens<'_>, first: usize) -> Vec<Change> {
    let names = items(tokens, first);
    let Some(end) = names.last().map(|name| name.end() + 2) else { return Vec::new() };
    let values = match tokens.word(end).to_ascii_lowercase().as_str() {
        "select" => items(tokens, end + 1 + usize::from(tokens.is(end + 1, "distinct"))),
        "values" => items(tokens, end + 2),
        _ => return Vec::new(),
    };
    let is_one_row = values.last().is_some_and(|value| !tokens.is(value.end() + 2, ","));
    if names.len() < 2 || names.len() != values.len() || !is_one_row {
        return Vec::new();
    }
    let drop =
        |item: usize| Change::drop(tokens, &[without(tokens, &names, item), without(tokens, &values, item)]);
    (0..names.len()).map(drop).collect()
}

/// Items with commas between them, from `first` on to an edge: their first and last tokens.
fn items(tokens: &Tokens<'_>, first: usize) -> Vec<std::ops::RangeInclusive<usize>> {
    let depth = tokens.depth(first);
    let mut items = Vec::new();
    let mut start = first;
    for place in first..=tokens.len() {
        let is_comma = tokens.depth(place) == depth && tokens.is(place, ",");
        let is_end = place == tokens.len()
            || tokens.depth(place) < depth
            || (tokens.depth(place) == depth && is_edge(tokens, place));
        if is_comma || is_end {
            if start < place {
                items.push(start..=place - 1);
            }
            start = place + 1;
        }
        if is_end && !is_comma {
            break;
        }
    }
    items
}

/// One of several items, and the comma beside it.
fn without(tokens: &Tokens<'_>, items: &[std::ops::RangeInclusive<usize>], item: usize) -> Range<usize> {
    let [first, last] = [*items[item].start(), *items[item].end()];
    if item > 0 { tokens.span(first - 1, last) } else { tokens.span(first, last + 1) }
}

/// Another number in a CASE, a COALESCE or the like.
fn constants(tokens: &Tokens<'_>) -> Vec<Change> {
    let is_number = |place: &usize| tokens.get(*place).is_some_and(|token| token.kind == Kind::Number);
    let change = |place: usize| {
        let opener = (0..place).rev().find(|before| tokens.depth(*before) < tokens.depth(place))?;
        let calls = ["coalesce", "greatest", "least", "ifnull", "if", "nullif"];
        let is_call = opener > 0 && tokens.is(opener, "(") && tokens.is_any(opener - 1, &calls);
        let other = another(tokens.word(place))?;
        (is_call || tokens.is(opener, "case"))
            .then(|| Change::replace(tokens, tokens.span(place, place), &other))?
    };
    (0..tokens.len()).filter(is_number).filter_map(change).collect()
}

/// A number of the same length.
pub(super) fn another(number: &str) -> Option<String> {
    let first = number.chars().next()?.to_digit(10)?;
    let other = match (first, number.len()) {
        (1, 1) => 0,
        (9, _) => 8,
        _ => first + 1,
    };
    Some(format!("{other}{}", &number[1..]))
}

/// DISTINCT, LIMIT, FOR UPDATE and SKIP LOCKED.
fn clauses(tokens: &Tokens<'_>) -> Vec<Change> {
    let change = |place: usize| {
        let is_plain = place == 0 || !tokens.is_any(place - 1, &["is", "not"]);
        let last = match tokens.word(place).to_ascii_lowercase().as_str() {
            "distinct" if is_plain && !tokens.is(place + 1, "on") => place,
            "limit" => CONDITIONS.last(tokens, place),
            "for" if tokens.is_any(place + 1, &["update", "share", "no"]) => lock(tokens, place),
            "lock" if tokens.is(place + 1, "in") => place + 3,
            "skip" | "nowait" => place + usize::from(tokens.is(place, "skip")),
            _ => return None,
        };
        Some(Change::drop(tokens, &[tokens.span(place, last)]))
    };
    (0..tokens.len()).filter_map(change).collect()
}

/// The last word of a `FOR UPDATE OF j SKIP LOCKED`.
fn lock(tokens: &Tokens<'_>, place: usize) -> usize {
    let words = ["for", "update", "share", "no", "key", "of", "skip", "locked", "nowait"];
    let goes_on = |next: &usize| tokens.is_any(*next, &words) || tokens.is(next - 1, "of");
    (place + 1..tokens.len()).take_while(goes_on).last().unwrap_or(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each fault of a text, in one line.
    fn faults(text: &str) -> Vec<String> {
        let one_line = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let changes = changes(text);
        changes
            .iter()
            .map(|change| change.apply(text))
            .inspect(|fault| assert_eq!(fault.len(), text.len()))
            .map(one_line)
            .collect()
    }

    #[test]
    fn a_condition_loses_each_of_its_parts() {
        assert_eq!(
            faults("SELECT a FROM t WHERE a = 1 AND (b OR c) AND d BETWEEN 1 AND 2 RETURNING a"),
            [
                "SELECT a FROM t WHERE (b OR c) AND d BETWEEN 1 AND 2 RETURNING a",
                "SELECT a FROM t WHERE a = 1 AND d BETWEEN 1 AND 2 RETURNING a",
                "SELECT a FROM t WHERE a = 1 AND ( c) AND d BETWEEN 1 AND 2 RETURNING a",
                "SELECT a FROM t WHERE a = 1 AND (b ) AND d BETWEEN 1 AND 2 RETURNING a",
                "SELECT a FROM t WHERE a = 1 AND (b OR c) RETURNING a",
            ]
        );
        assert_eq!(
            faults("DELETE FROM t WHERE a IS DISTINCT FROM b; SELECT 1 FROM t JOIN u ON t.a = u.a"),
            [
                "DELETE FROM t ; SELECT 1 FROM t JOIN u ON t.a = u.a",
                "DELETE FROM t WHERE a IS DISTINCT FROM b; SELECT 1 FROM t JOIN u ON TRUE",
            ]
        );
    }

    #[test]
    fn an_order_loses_swaps_and_turns_its_keys() {
        assert_eq!(
            faults("SELECT a FROM t ORDER BY b DESC, left(c, 2) FOR UPDATE OF t SKIP LOCKED"),
            [
                "SELECT a FROM t ORDER BY left(c, 2) FOR UPDATE OF t SKIP LOCKED",
                "SELECT a FROM t ORDER BY left(c, 2), b DESC FOR UPDATE OF t SKIP LOCKED",
                "SELECT a FROM t ORDER BY b ASC , left(c, 2) FOR UPDATE OF t SKIP LOCKED",
                "SELECT a FROM t ORDER BY b DESC FOR UPDATE OF t SKIP LOCKED",
                "SELECT a FROM t ORDER BY b DESC, left(c, 2)",
                "SELECT a FROM t ORDER BY b DESC, left(c, 2) FOR UPDATE OF t",
            ]
        );
        assert_eq!(faults("(SELECT a ORDER BY b LIMIT 1)"), ["(SELECT a LIMIT 1)", "(SELECT a ORDER BY b )"]);
    }

    #[test]
    fn a_write_loses_columns() {
        assert_eq!(
            faults("INSERT INTO t (a, b) SELECT f(x, y), 2 FROM u"),
            ["INSERT INTO t ( b) SELECT 2 FROM u", "INSERT INTO t (a ) SELECT f(x, y) FROM u"]
        );
        assert_eq!(faults("UPDATE t SET a = 1, b = 2"), ["UPDATE t SET b = 2", "UPDATE t SET a = 1"]);
        assert!(faults("INSERT INTO t (a, b) VALUES {list}").is_empty());
    }

    #[test]
    fn numbers_and_clauses_change() {
        assert_eq!(
            faults("SELECT DISTINCT CASE WHEN a THEN 1 ELSE coalesce(b, 10) END"),
            [
                "SELECT CASE WHEN a THEN 1 ELSE coalesce(b, 10) END",
                "SELECT DISTINCT CASE WHEN a THEN 0 ELSE coalesce(b, 10) END",
                "SELECT DISTINCT CASE WHEN a THEN 1 ELSE coalesce(b, 20) END",
            ]
        );
    }
}
