//! JSON documents that every database keeps without change.

use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::exact;
use crate::invalid::{Invalid, Problem};
use crate::limits;
use crate::strict;

/// A JSON document (payload, result or error) which any backend gives back equal.
///
/// It is kept as compact text, also where it was made of a [`RawValue`], and decoded straight into the type that is asked for. Two documents are equal when
/// they have the same JSON value: the order of object members does not matter, and `1.0`, `1` and `1e0` are one
/// number. What a database could not keep is refused when the document is made: U+0000 in text, numbers that do not
/// fit a 64-bit integer or float exactly (infinities and NaN too), nesting deeper than [`limits::JSON_DEPTH`].
///
/// ```
/// use leasehold_core::Json;
///
/// let order = Json::new(&("socks", 3))?;
/// assert_eq!(order.as_str(), r#"["socks",3]"#);
/// assert_eq!(order.to::<(String, u32)>().unwrap(), ("socks".to_owned(), 3));
/// assert!(Json::new(&f64::NAN).is_err());
/// # Ok::<(), leasehold_core::Invalid>(())
/// ```
#[derive(Clone)]
pub struct Json(Arc<str>);

impl Json {
    /// Encodes `value`.
    ///
    /// # Errors
    /// [`Invalid`] with the field `json`.
    pub fn new<T: Serialize + ?Sized>(value: &T) -> Result<Self, Invalid> {
        let text = strict::to_string(value).map_err(|problem| Invalid::new("json", problem))?;
        Self::checked(text)
    }

    /// Takes JSON text from outside, such as a command line.
    ///
    /// # Errors
    /// [`Invalid`] with the field `json`.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let text = strict::compact(text).map_err(|problem| Invalid::new("json", problem))?;
        Self::checked(text)
    }

    /// The document `null`.
    pub fn null() -> Self {
        Self("null".into())
    }

    /// A document `{"error": message}`, the usual form of an error. U+0000 in the message becomes U+FFFD.
    pub fn error(message: impl fmt::Display) -> Self {
        let message = message.to_string().replace('\0', "\u{fffd}");
        Self(serde_json::json!({ "error": message }).to_string().into())
    }

    /// Takes text that a database has kept.
    ///
    /// # Errors
    /// The parser's, if the text is not JSON that has a [`value`](Self::value).
    pub(crate) fn stored(text: String) -> Result<Self, serde_json::Error> {
        serde_json::from_str::<Readable>(&text)?;
        Ok(Self(text.into()))
    }

    /// The compact text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Decodes the document.
    ///
    /// # Errors
    /// The decoder's, if the document does not have the form of a `T`.
    pub fn to<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }

    /// The document as a tree, to look around in.
    pub fn value(&self) -> Value {
        // Every way to make a document has parsed it, or written it. If it cannot be parsed for all that, its text is not lost.
        serde_json::from_str(&self.0).unwrap_or_else(|_| Value::String(self.0.to_string()))
    }

    fn checked(text: String) -> Result<Self, Invalid> {
        if text.len() > limits::JSON_BYTES {
            let problem = Problem::TooLong { bytes: text.len(), limit: limits::JSON_BYTES };
            return Err(Invalid::new("json", problem));
        }
        exact::check(&text).map_err(|problem| Invalid::new("json", problem))?;
        Ok(Self(text.into()))
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0 || same_value(&self.value(), &other.value())
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Self::parse(raw.get()).map_err(serde::de::Error::custom)
    }
}

/// Reads a document that is there, `null` too: only one that is left out is none.
pub(crate) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}

fn same_value(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => exact::same_number(&a.to_string(), &b.to_string()),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_value(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter().all(|(key, value)| b.get(key).is_some_and(|other| same_value(value, other)))
        }
        (a, b) => a == b,
    }
}

/// A document that was looked through as a [`Value`] would be, and not kept. `IgnoredAny` passes over lone surrogates, numbers beyond a
/// float's and deep nesting.
struct Readable;

impl<'de> Deserialize<'de> for Readable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Readable {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON document")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self, A::Error> {
        while elements.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self, A::Error> {
        while members.next_entry::<Self, Self>()?.is_some() {}
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::Json;
    use crate::invalid::Problem;

    #[test]
    fn equality_is_of_values() {
        for (a, b) in [
            (r#"{"a":1,"b":[true,null]}"#, r#"{ "b":[true,null], "a":1.0 }"#),
            ("1e16", "10000000000000000"),
            ("-0.0", "0"),
            (r#""\u00e9""#, "\"\u{e9}\""),
        ] {
            assert_eq!(Json::parse(a).unwrap(), Json::parse(b).unwrap(), "{a} and {b}");
        }
        for (a, b) in [("1", "2"), ("[1]", "[1,1]"), (r#"{"a":1}"#, r#"{"a":1,"b":null}"#), ("1", "\"1\"")] {
            assert_ne!(Json::parse(a).unwrap(), Json::parse(b).unwrap(), "{a} and {b}");
        }
    }

    #[test]
    fn numbers_are_kept_exactly_or_refused() {
        for kept in [
            "0.1",
            "18446744073709551615",
            "-9223372036854775808",
            "1e300",
            "1.50",
            "-1.25e-3",
            "0.01e1",
            "0e99999",
            "0.0e9223372036854775807",
            "0.0e-9223372036854775808",
            "0e99999999999999999999",
        ] {
            assert!(Json::parse(kept).is_ok(), "{kept}");
        }
        for refused in [
            "18446744073709551617",
            "0.1000000000000000000001",
            "1e400",
            "1e-400",
            "9007199254740993.5",
            "1.5e-9223372036854775808",
            "1.5e-99999999999999999999",
        ] {
            let problem = Json::parse(refused).unwrap_err().problem;
            assert_eq!(problem, Problem::InexactNumber { number: refused.to_owned() });
            // Also after text that looks like the end or the beginning of a string.
            for before in [r#"["a","#, r#"["\"","#, r#"["\\","#, r#"["","#, r#"{"1e400":"#] {
                let document = format!("{before}{refused}");
                let problem = Json::parse(&document).unwrap_err().problem;
                assert_eq!(problem, Problem::InexactNumber { number: refused.to_owned() }, "{document}");
            }
        }
    }

    #[test]
    fn refuses_what_a_database_cannot_keep() {
        assert_eq!(Json::new("a\0b").unwrap_err().problem, Problem::Nul);
        assert_eq!(Json::parse(r#"{"a\u0000":1}"#).unwrap_err().problem, Problem::Nul);
        assert_eq!(Json::parse(&"[".repeat(65)).unwrap_err().problem, Problem::TooDeep { limit: 64 });
        assert!(Json::parse(&nested(64)).is_ok());
        // What stands side by side is not deep.
        for element in ["[],", "{},"] {
            assert!(Json::parse(&format!("[{}null]", element.repeat(100))).is_ok(), "{element}");
        }
        assert!(matches!(Json::parse(r#""\ud800""#).unwrap_err().problem, Problem::NotJson { .. }));
        assert!(matches!(Json::parse("nope").unwrap_err().problem, Problem::NotJson { .. }));
        assert!(matches!(Json::new(&f64::INFINITY).unwrap_err().problem, Problem::InexactNumber { .. }));
        assert!(matches!(Json::new(&[Some(f32::NAN)]).unwrap_err().problem, Problem::InexactNumber { .. }));
        assert!(matches!(Json::new(&u128::MAX).unwrap_err().problem, Problem::InexactNumber { .. }));
        assert_eq!(Json::error("a\0b").as_str(), "{\"error\":\"a\u{fffd}b\"}");
    }

    #[test]
    fn an_error_that_is_null_is_not_none() {
        #[derive(serde::Serialize, serde::Deserialize, PartialEq, Debug)]
        struct Row {
            #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "super::present")]
            error: Option<Json>,
        }
        for error in [None, Some(Json::null()), Some(Json::error("no"))] {
            let row = Row { error };
            let text = serde_json::to_string(&row).unwrap();
            assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), row, "{text}");
        }
    }

    #[test]
    fn raw_text_is_parsed() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        for (text, compact) in [
            (r#" {"b": [1, 2 ], "a" : "x y" } "#, r#"{"a":"x y","b":[1,2]}"#),
            (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
            (r#""\u00e9\ud83d\ude00""#, "\"\u{e9}\u{1f600}\""),
            ("1e2", "100.0"),
        ] {
            assert_eq!(Json::new(&raw(text)).unwrap().as_str(), compact, "{text}");
            let inside = Json::new(&[Some(raw(text))]).unwrap();
            assert_eq!(inside.as_str(), format!("[{compact}]"));
        }
        for lone in [r#""\ud800""#, r#"{"\udc00":1}"#] {
            let problem = Json::new(&raw(lone)).unwrap_err().problem;
            assert!(
                matches!(&problem, Problem::NotJson { reason } if reason.contains("hex escape")),
                "{problem:?}"
            );
        }
        let inexact = |number: &str| Problem::InexactNumber { number: number.to_owned() };
        for (refused, expected) in [
            ("[0.1000000000000000000001]".to_owned(), inexact("0.1000000000000000000001")),
            ("[1e400]".to_owned(), inexact("1e400")),
            (r#""\u0000""#.to_owned(), Problem::Nul),
            (nested(65), Problem::TooDeep { limit: 64 }),
        ] {
            assert_eq!(Json::new(&raw(&refused)).unwrap_err().problem, expected, "{refused}");
        }
    }

    fn nested(levels: usize) -> String {
        format!("{}{}", "[".repeat(levels), "]".repeat(levels))
    }

    /// What a database has kept may have been written by hand.
    #[test]
    fn stored_text_has_a_value() {
        for text in [r#""\ud800""#, r#"{"\udc00":1}"#, "[1e400]", &nested(200), "", "1 2"] {
            assert!(Json::stored(text.to_owned()).is_err(), "{text}");
        }
        for text in [" null ", r#"{"a":[1,-2.5e3,"\u00e9",true,null,{}]}"#, "18446744073709551615"] {
            let expected: serde_json::Value = serde_json::from_str(text).unwrap();
            assert_eq!(Json::stored(text.to_owned()).unwrap().value(), expected, "{text}");
        }
    }

    #[test]
    fn a_backslash_before_u0000_is_text() {
        let text = Json::new(r"\u0000").unwrap();
        assert_eq!(text.to::<String>().unwrap(), r"\u0000");
    }
}
