//! The words and signs of a text in SQL or Lua, without its comments.
//!
//! It knows just as much as the operators in [`sql`](super::sql) and [`lua`](super::lua) need: where a word begins and ends, and how deep in
//! parentheses (and `CASE … END`) it stands.

use std::ops::Range;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A keyword, a name, a parameter such as `$1`, or a placeholder such as `{prefix}`.
    Word,
    Number,
    /// A string in single or double quotes.
    Text,
    /// A comparison, an operator, a comma, a semicolon, a parenthesis.
    Sign,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    /// Where it stands in the text.
    pub(super) range: Range<usize>,
    /// How many parentheses and CASEs are open around it. A parenthesis itself stands outside of what it encloses.
    pub(super) depth: usize,
}

/// A text and its tokens.
pub(super) struct Tokens<'a> {
    pub(super) text: &'a str,
    list: Vec<Token>,
}

impl<'a> Tokens<'a> {
    /// Comments begin with `--` and end with their line.
    pub(super) fn of(text: &'a str) -> Self {
        let mut tokens = Self { text, list: Vec::new() };
        let (mut at, mut depth, mut cases) = (0, 0_usize, 0_usize);
        while let Some(first) = text[at..].chars().next() {
            let rest = &text[at..];
            let length = length(rest, first);
            let range = at..at + length;
            at = range.end;
            let Some(kind) = kind(rest, first) else { continue };
            let word = &text[range.clone()];
            let closes = matches!(word, ")" | "}" | "]") || (word.eq_ignore_ascii_case("end") && cases > 0);
            if closes {
                depth = depth.saturating_sub(1);
                cases -= usize::from(word.eq_ignore_ascii_case("end"));
            }
            tokens.list.push(Token { kind, range, depth });
            let is_case = word.eq_ignore_ascii_case("case");
            cases += usize::from(is_case);
            depth += usize::from(is_case || matches!(word, "(" | "{" | "["));
        }
        tokens
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn get(&self, place: usize) -> Option<&Token> {
        self.list.get(place)
    }

    /// What stands at a place; nothing beyond the ends.
    pub(super) fn word(&self, place: usize) -> &'a str {
        self.get(place).map_or("", |token| &self.text[token.range.clone()])
    }

    pub(super) fn words(&self) -> impl Iterator<Item = &'a str> + '_ {
        (0..self.len()).map(|place| self.word(place))
    }

    pub(super) fn is(&self, place: usize, word: &str) -> bool {
        self.word(place).eq_ignore_ascii_case(word)
    }

    pub(super) fn is_any(&self, place: usize, words: &[&str]) -> bool {
        words.iter().any(|word| self.is(place, word))
    }

    pub(super) fn depth(&self, place: usize) -> usize {
        self.get(place).map_or(0, |token| token.depth)
    }

    /// From the first byte of one token to the last of another.
    pub(super) fn span(&self, first: usize, last: usize) -> Range<usize> {
        let start = self.get(first).map_or(0, |token| token.range.start);
        start..self.get(last).map_or(start, |token| token.range.end)
    }
}

/// How many bytes belong together from here on.
fn length(rest: &str, first: char) -> usize {
    let until = |end: fn(char) -> bool| rest.find(end).unwrap_or(rest.len());
    match first {
        _ if rest.starts_with("--") => until(|c| c == '\n'),
        _ if rest.starts_with("$$") => 2,
        '\'' | '"' => rest[1..].find(first).map_or(rest.len(), |end| end + 2),
        '?' => 1 + until_end_of_word(&rest[1..]),
        '{' => placeholder(rest).map_or(1, |end| end + until_end_of_word(&rest[end..])),
        _ if is_of_word(first) => {
            let plain = until_end_of_word(rest);
            // `{prefix}` may stand in the middle of a name.
            placeholder(&rest[plain..]).map_or(plain, |end| plain + end)
        }
        _ => {
            let pairs = ["<>", "<=", ">=", "!=", "~=", "==", "||", "::", ".."];
            pairs.iter().find(|pair| rest.starts_with(**pair)).map_or(first.len_utf8(), |pair| pair.len())
        }
    }
}

/// The length of `{name}`, if that stands at the beginning.
fn placeholder(rest: &str) -> Option<usize> {
    let inner = rest.strip_prefix('{')?;
    let end = inner.find('}')?;
    let is_name = end > 0 && inner[..end].chars().all(|c| c.is_ascii_lowercase() || c == '_');
    is_name.then_some(end + 2)
}

fn until_end_of_word(rest: &str) -> usize {
    rest.find(|c| !is_of_word(c)).unwrap_or(rest.len())
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '.' || (c == '$')
}

fn kind(rest: &str, first: char) -> Option<Kind> {
    match first {
        _ if first.is_whitespace() || rest.starts_with("--") => None,
        '\'' | '"' => Some(Kind::Text),
        '{' if placeholder(rest).is_some() => Some(Kind::Word),
        _ if first.is_ascii_digit() => Some(Kind::Number),
        _ if rest.starts_with("..") || rest.starts_with("$$") => Some(Kind::Sign),
        _ if is_of_word(first) => Some(Kind::Word),
        _ => Some(Kind::Sign),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<&str> {
        Tokens::of(text).words().collect()
    }

    #[test]
    fn a_text_is_words_signs_and_strings() {
        let text = "SELECT j.id -- not (this\nFROM {prefix}job_queue j WHERE a<=$1 AND b = 'x -- y'";
        let expected = [
            "SELECT",
            "j.id",
            "FROM",
            "{prefix}job_queue",
            "j",
            "WHERE",
            "a",
            "<=",
            "$1",
            "AND",
            "b",
            "=",
            "'x -- y'",
        ];
        assert_eq!(words(text), expected);
    }

    #[test]
    fn parentheses_and_cases_are_deeper() {
        let tokens = Tokens::of("a (b) CASE c END d END");
        let depths: Vec<usize> = (0..tokens.len()).map(|place| tokens.depth(place)).collect();
        assert_eq!(depths, [0, 0, 1, 0, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn a_text_that_is_cut_off_ends() {
        assert_eq!(words("a 'b"), ["a", "'b"]);
        assert_eq!(words("{not a name}"), ["{", "not", "a", "name", "}"]);
    }
}
