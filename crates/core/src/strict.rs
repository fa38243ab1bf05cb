//! Encoding to JSON that refuses infinities and NaN, which `serde_json` would turn into `null` in silence, and parses raw text, which
//! `serde_json` would write as it is.

use std::io;

use serde::ser::{self, Serialize};
use serde_json::error::Error;
use serde_json::ser::{Formatter, Serializer};

use crate::exact;
use crate::invalid::Problem;

/// `value` as compact JSON.
pub(crate) fn to_string<T: Serialize + ?Sized>(value: &T) -> Result<String, Problem> {
    let (mut text, mut refused) = (Vec::with_capacity(128), None);
    let mut serializer = Serializer::with_formatter(&mut text, Compact { refused: &mut refused });
    let written = value.serialize(Strict(&mut serializer));
    written.map_err(|error| refused.unwrap_or_else(|| problem(error)))?;
    String::from_utf8(text).map_err(|error| Problem::NotJson { reason: error.to_string() })
}

/// `text` as compact JSON.
pub(crate) fn compact(text: &str) -> Result<String, Problem> {
    exact::check(text)?;
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|error| Problem::NotJson { reason: error.to_string() })?;
    Ok(value.to_string())
}

/// Writes nothing between the tokens, also within a `RawValue`.
struct Compact<'a> {
    /// What is wrong with a `RawValue`.
    refused: &'a mut Option<Problem>,
}

impl Formatter for Compact<'_> {
    fn write_raw_fragment<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        match compact(fragment) {
            Ok(text) => writer.write_all(text.as_bytes()),
            Err(problem) => {
                *self.refused = Some(problem);
                Err(io::ErrorKind::InvalidData.into())
            }
        }
    }
}

const NOT_FINITE: &str = "not a finite number: ";

fn problem(error: Error) -> Problem {
    let reason = error.to_string();
    match reason.strip_prefix(NOT_FINITE) {
        Some(number) => Problem::InexactNumber { number: number.to_owned() },
        None => Problem::NotJson { reason },
    }
}

fn finite(number: f64) -> Result<(), Error> {
    if number.is_finite() { Ok(()) } else { Err(ser::Error::custom(format_args!("{NOT_FINITE}{number}"))) }
}

/// Hands everything on to `serde_json`, but looks at floats first.
struct Strict<S>(S);

/// A value inside a compound, to be looked at in its turn.
struct Inner<'a, T: ?Sized>(&'a T);

impl<T: Serialize + ?Sized> Serialize for Inner<'_, T> {
    fn serialize<S: ser::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(Strict(serializer))
    }
}

macro_rules! pass_on {
    ($($method:ident: $type:ty),* $(,)?) => {
        $(fn $method(self, value: $type) -> Result<S::Ok, S::Error> { self.0.$method(value) })*
    };
}

impl<S: ser::Serializer> ser::Serializer for Strict<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Strict<S::SerializeSeq>;
    type SerializeTuple = Strict<S::SerializeTuple>;
    type SerializeTupleStruct = Strict<S::SerializeTupleStruct>;
    type SerializeTupleVariant = Strict<S::SerializeTupleVariant>;
    type SerializeMap = Strict<S::SerializeMap>;
    type SerializeStruct = Strict<S::SerializeStruct>;
    type SerializeStructVariant = Strict<S::SerializeStructVariant>;

    pass_on! {
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64,
        serialize_i128: i128, serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64,
        serialize_u128: u128, serialize_char: char, serialize_str: &str, serialize_bytes: &[u8],
        serialize_unit_struct: &'static str,
    }

    fn serialize_f32(self, value: f32) -> Result<S::Ok, S::Error> {
        finite(value.into()).map_err(ser::Error::custom)?;
        self.0.serialize_f32(value)
    }

    fn serialize_f64(self, value: f64) -> Result<S::Ok, S::Error> {
        finite(value).map_err(ser::Error::custom)?;
        self.0.serialize_f64(value)
    }

    fn serialize_none(self) -> Result<S::Ok, S::Error> {
        self.0.serialize_none()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.0.serialize_some(&Inner(value))
    }

    fn serialize_unit(self) -> Result<S::Ok, S::Error> {
        self.0.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
    ) -> Result<S::Ok, S::Error> {
        self.0.serialize_unit_variant(name, index, variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.0.serialize_newtype_struct(name, &Inner(value))
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.0.serialize_newtype_variant(name, index, variant, &Inner(value))
    }

    fn serialize_seq(self, length: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        self.0.serialize_seq(length).map(Strict)
    }

    fn serialize_tuple(self, length: usize) -> Result<Self::SerializeTuple, S::Error> {
        self.0.serialize_tuple(length).map(Strict)
    }

    fn serialize_tuple_struct(
        self,
        name: &'static str,
        length: usize,
    ) -> Result<Self::SerializeTupleStruct, S::Error> {
        self.0.serialize_tuple_struct(name, length).map(Strict)
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        self.0.serialize_tuple_variant(name, index, variant, length).map(Strict)
    }

    fn serialize_map(self, length: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        self.0.serialize_map(length).map(Strict)
    }

    fn serialize_struct(self, name: &'static str, length: usize) -> Result<Self::SerializeStruct, S::Error> {
        self.0.serialize_struct(name, length).map(Strict)
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        self.0.serialize_struct_variant(name, index, variant, length).map(Strict)
    }
}

macro_rules! compound {
    ($trait:ident, $method:ident($($name:ident: $type:ty),*)) => {
        impl<S: ser::$trait> ser::$trait for Strict<S> {
            type Ok = S::Ok;
            type Error = S::Error;
            fn $method<T: Serialize + ?Sized>(&mut self, $($name: $type,)* value: &T) -> Result<(), S::Error> {
                self.0.$method($($name,)* &Inner(value))
            }
            fn end(self) -> Result<S::Ok, S::Error> {
                self.0.end()
            }
        }
    };
}

compound!(SerializeSeq, serialize_element());
compound!(SerializeTuple, serialize_element());
compound!(SerializeTupleStruct, serialize_field());
compound!(SerializeTupleVariant, serialize_field());
compound!(SerializeStruct, serialize_field(key: &'static str));
compound!(SerializeStructVariant, serialize_field(key: &'static str));

impl<S: ser::SerializeMap> ser::SerializeMap for Strict<S> {
    type Ok = S::Ok;
    type Error = S::Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), S::Error> {
        self.0.serialize_key(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.0.serialize_value(&Inner(value))
    }

    fn end(self) -> Result<S::Ok, S::Error> {
        self.0.end()
    }
}
