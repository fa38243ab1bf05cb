//! A small fault in a text, as long as what it replaces.
//!
//! A fault never changes the length of a text. So it can be put into a program that was built already, where the text stands letter by
//! letter: one build serves all faults.

use std::ops::Range;

use super::token::{Kind, Tokens};

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    /// What was done to what, in one line.
    pub(super) what: String,
    edits: Vec<(Range<usize>, String)>,
}

impl Change {
    /// Takes parts of the text away.
    pub(super) fn drop(tokens: &Tokens<'_>, ranges: &[Range<usize>]) -> Self {
        let parts: Vec<String> = ranges.iter().map(|range| shown(&tokens.text[range.clone()])).collect();
        let blank = |range: &Range<usize>| (range.clone(), blank(&tokens.text[range.clone()]));
        Self { what: format!("drop {}", parts.join(" and ")), edits: ranges.iter().map(blank).collect() }
    }

    /// Puts something else in the place of a part; nothing if that is too long for the part.
    pub(super) fn replace(tokens: &Tokens<'_>, range: Range<usize>, by: &str) -> Option<Self> {
        let before = &tokens.text[range.clone()];
        let filler = before.len().checked_sub(by.len())?;
        let what = format!("{} for {}", shown(by), shown(before));
        Some(Self { what, edits: vec![(range, format!("{by}{}", " ".repeat(filler)))] })
    }

    /// Where in the text it begins.
    pub(super) fn start(&self) -> usize {
        self.edits.iter().map(|(range, _)| range.start).min().unwrap_or_default()
    }

    /// The text with the fault in it.
    pub(super) fn apply(&self, text: &str) -> String {
        let mut changed = text.to_owned();
        self.edits.iter().for_each(|(range, by)| changed.replace_range(range.clone(), by));
        changed
    }
}

/// Spaces, and the ends of lines, so that a comment ends where it ended.
fn blank(text: &str) -> String {
    text.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }).collect()
}

/// A part of a text in one line.
fn shown(text: &str) -> String {
    let words: Vec<&str> = Tokens::of(text).words().collect();
    format!("`{}`", words.join(" "))
}

/// `<` for `<=`, `>` for `>=`, and the reverse.
pub(super) fn comparisons(tokens: &Tokens<'_>) -> Vec<Change> {
    let change = |place: usize| {
        let range = tokens.span(place, place);
        let is_arrow = tokens.text[..range.start].ends_with(['-', '=', '>']);
        let by = match tokens.word(place) {
            "<" => "<=",
            ">" if !is_arrow => ">=",
            "<=" => "<",
            ">=" => ">",
            _ => return None,
        };
        let has_room = by.len() <= range.len() || tokens.text[range.end..].starts_with(' ');
        let range = range.start..range.start + range.len().max(by.len());
        has_room.then(|| Change::replace(tokens, range, by))?
    };
    (0..tokens.len()).filter_map(change).collect()
}

/// What a language says of its conditions.
pub(super) struct Conditions {
    /// Whether a token, in the depth of a condition, ends it or stands before it.
    pub(super) is_edge: fn(&Tokens<'_>, usize) -> bool,
}

impl Conditions {
    /// Drops one part of each AND and OR.
    pub(super) fn changes(&self, tokens: &Tokens<'_>) -> Vec<Change> {
        let mut changes = Vec::new();
        for place in (0..tokens.len()).filter(|place| is_connective(tokens, *place)) {
            changes.push(Change::drop(tokens, &[tokens.span(place, self.last(tokens, place))]));
            let first = self.first(tokens, place);
            if first < place && !(first > 0 && is_connective(tokens, first - 1)) {
                changes.push(Change::drop(tokens, &[tokens.span(first, place)]));
            }
        }
        changes
    }

    /// The last token of what follows `place` up to an edge, an AND or an OR.
    pub(super) fn last(&self, tokens: &Tokens<'_>, place: usize) -> usize {
        let depth = tokens.depth(place);
        let ends = |next: &usize| {
            let deeper = tokens.depth(*next);
            deeper < depth
                || (deeper == depth && ((self.is_edge)(tokens, *next) || is_connective(tokens, *next)))
        };
        (place + 1..tokens.len()).find(ends).unwrap_or(tokens.len()) - 1
    }

    /// The first token of what stands before `place`, down to an edge, an AND or an OR.
    fn first(&self, tokens: &Tokens<'_>, place: usize) -> usize {
        let depth = tokens.depth(place);
        let begins = |before: &usize| {
            let deeper = tokens.depth(*before);
            let opens = deeper < depth || (deeper == depth && is_connective(tokens, *before));
            opens || (deeper == depth && (self.is_edge)(tokens, *before))
        };
        // An opening parenthesis stands outside of what it encloses.
        (0..place).rev().find(begins).map_or(0, |before| before + 1)
    }
}

/// AND or OR, but not the AND of a BETWEEN, nor the OR of `INSERT OR` and `CREATE OR`.
pub(super) fn is_connective(tokens: &Tokens<'_>, place: usize) -> bool {
    if !tokens.is_any(place, &["and", "or"]) || tokens.get(place).is_none_or(|token| token.kind != Kind::Word)
    {
        return false;
    }
    if place > 0 && tokens.is_any(place - 1, &["insert", "create"]) {
        return false;
    }
    let depth = tokens.depth(place);
    let mut before = (0..place).rev().take_while(|before| tokens.depth(*before) >= depth);
    let nearest = before.find(|before| {
        tokens.depth(*before) == depth && tokens.is_any(*before, &["and", "or", "between", "where", "on"])
    });
    tokens.is(place, "or") || nearest.is_none_or(|nearest| !tokens.is(nearest, "between"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_as_long_as_what_it_replaces() {
        let text = "WHERE a < 1 -- D1\n  AND b >= 2";
        let tokens = Tokens::of(text);
        let found: Vec<String> = comparisons(&tokens).iter().map(|change| change.apply(text)).collect();
        assert_eq!(found, ["WHERE a <=1 -- D1\n  AND b >= 2", "WHERE a < 1 -- D1\n  AND b >  2"]);
    }

    #[test]
    fn an_arrow_is_no_comparison() {
        assert!(comparisons(&Tokens::of("a -> 'b' ->> 'c' <> d<1")).is_empty());
    }

    #[test]
    fn too_long_a_replacement_is_none() {
        let tokens = Tokens::of("ab");
        assert_eq!(Change::replace(&tokens, 0..2, "abc"), None);
        assert_eq!(
            Change::replace(&tokens, 0..2, "c").map(|change| change.apply("ab")),
            Some("c ".to_owned())
        );
    }
}
