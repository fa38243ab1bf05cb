//! Looks through JSON text for what a database could not keep.

use crate::invalid::Problem;
use crate::limits;

/// Walks over `text` once and refuses U+0000, numbers that would change, and deep nesting.
///
/// Text that is not JSON passes or fails here; the parser has the last word on it.
pub(crate) fn check(text: &str) -> Result<(), Problem> {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(&byte) = bytes.get(at) {
        at = match byte {
            b'"' => string_end(bytes, at + 1)?,
            b'-' | b'0'..=b'9' => number_end(text, at)?,
            b'[' | b'{' => {
                depth += 1;
                if depth > limits::JSON_DEPTH {
                    return Err(Problem::TooDeep { limit: limits::JSON_DEPTH });
                }
                at + 1
            }
            b']' | b'}' => {
                depth = depth.saturating_sub(1);
                at + 1
            }
            _ => at + 1,
        };
    }
    Ok(())
}

/// Whether two JSON numbers have the same value.
pub(crate) fn same_number(a: &str, b: &str) -> bool {
    a == b || Decimal::of(a) == Decimal::of(b)
}

fn string_end(bytes: &[u8], mut at: usize) -> Result<usize, Problem> {
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => return Ok(at + 1),
            b'\\' if bytes[at + 1..].starts_with(b"u0000") => return Err(Problem::Nul),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    Ok(at)
}

fn number_end(text: &str, start: usize) -> Result<usize, Problem> {
    let length = text[start..]
        .bytes()
        .take_while(|byte| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9'));
    let end = start + length.count();
    let number = &text[start..end];
    if is_kept(number) { Ok(end) } else { Err(Problem::InexactNumber { number: number.to_owned() }) }
}

fn is_kept(number: &str) -> bool {
    if number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok() {
        return true;
    }
    match number.parse::<f64>() {
        Ok(float) if float.is_finite() => is_a_shortest_form(number, float),
        Ok(_) => false,
        // Not a number at all: the parser will say so.
        Err(_) => true,
    }
}

/// Whether `number` is a shortest decimal form of `float`.
///
/// A float that lies halfway between two shortest forms has both of them: 204294592689758.125 is written with the last digit 2 by
/// the standard library and with 3 by serde_json, and either is read as the same float again.
fn is_a_shortest_form(number: &str, float: f64) -> bool {
    let written = serde_json::Number::from_f64(float).map(|number| number.to_string());
    same_number(number, &format!("{float:e}")) || written.is_some_and(|written| same_number(number, &written))
}

/// A decimal number without its accidents of writing: `digits × 10^exponent`, no zero at either end.
#[derive(PartialEq)]
struct Decimal {
    negative: bool,
    digits: String,
    exponent: i128,
}

impl Decimal {
    fn of(number: &str) -> Self {
        let (negative, number) = match number.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, number),
        };
        let (mantissa, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        let significant = digits.trim_end_matches('0');
        let dropped = (digits.len() - significant.len()) as i128;
        let exponent =
            exponent.parse().unwrap_or(if exponent.starts_with('-') { i64::MIN } else { i64::MAX });
        let exponent = i128::from(exponent) - fraction.len() as i128 + dropped;
        let digits = significant.trim_start_matches('0').to_owned();
        if digits.is_empty() {
            return Self { negative: false, digits, exponent: 0 };
        }
        Self { negative, digits, exponent }
    }
}
