//! `#[derive(JobKind)]`: says of which kind the jobs with a payload of this type are. Nothing needs it: the impl is one line.
//!
//! ```
//! use leasehold_core::JobKind as _;
//! use leasehold_macros::JobKind;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, JobKind)]
//! #[job(crate = leasehold_core)] // only without the crate `leasehold`
//! struct SendMail {
//!     to: String,
//! }
//! assert_eq!(SendMail::KIND, "send_mail");
//!
//! #[derive(Serialize, Deserialize, JobKind)]
//! #[job(kind = "mail:welcome", crate = leasehold_core)]
//! struct Welcome;
//! assert_eq!(Welcome::KIND, "mail:welcome");
//! ```
//!
//! A kind that a store would refuse does not compile:
//!
//! ```compile_fail
//! # use leasehold_macros::JobKind;
//! # use serde::{Deserialize, Serialize};
//! #[derive(Serialize, Deserialize, JobKind)]
//! #[job(kind = "", crate = leasehold_core)]
//! struct Nothing;
//! ```

use proc_macro::TokenStream;
use quote::quote;
use syn::{DeriveInput, LitStr, Path, parse_macro_input, parse_quote};

/// The longest kind in bytes, as `leasehold_core::limits::NAME_BYTES` has it.
const LONGEST: usize = 128;

/// Implements `JobKind`. The kind is the type's name in snake case, or what `#[job(kind = "…")]` says. Keep it when you rename
/// the type: jobs in the queue have it.
#[proc_macro_derive(JobKind, attributes(job))]
pub fn derive_job_kind(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    job_kind(&input).unwrap_or_else(|error| error.into_compile_error()).into()
}

fn job_kind(input: &DeriveInput) -> syn::Result<proc_macro2::TokenStream> {
    let name = &input.ident;
    let mut kind = LitStr::new(&snake_case(&name.to_string()), name.span());
    let mut home: Path = parse_quote!(::leasehold);
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("job")) {
        attribute.parse_nested_meta(|meta| match () {
            () if meta.path.is_ident("kind") => {
                kind = meta.value()?.parse()?;
                Ok(())
            }
            () if meta.path.is_ident("crate") => {
                home = meta.value()?.parse()?;
                Ok(())
            }
            () => Err(meta.error("expected `kind = \"…\"` or `crate = path`")),
        })?;
    }
    check(&kind)?;
    let (impl_generics, type_generics, where_clause) = input.generics.split_for_impl();
    Ok(quote! {
        impl #impl_generics #home::JobKind for #name #type_generics #where_clause {
            const KIND: &'static str = #kind;
        }
    })
}

fn check(kind: &LitStr) -> syn::Result<()> {
    let value = kind.value();
    let printable = value.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
    if value.is_empty() || value.len() > LONGEST || !printable {
        let message = format!("a kind has 1 to {LONGEST} bytes of printable ASCII");
        return Err(syn::Error::new(kind.span(), message));
    }
    Ok(())
}

/// `SendMail` as `send_mail`, `HTTPCall` as `http_call`.
fn snake_case(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let mut snake = String::new();
    for (place, letter) in letters.iter().enumerate() {
        let before = place.checked_sub(1).and_then(|place| letters.get(place));
        let after = letters.get(place + 1);
        let starts = before.is_some_and(|before| before.is_lowercase() || before.is_ascii_digit())
            || before.is_some_and(|before| before.is_uppercase())
                && after.is_some_and(|after| after.is_lowercase());
        if letter.is_uppercase() && starts {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::{job_kind, snake_case};

    #[test]
    fn names_become_snake_case() {
        let names = [
            ("SendMail", "send_mail"),
            ("HTTPCall", "http_call"),
            ("Mail2Fax", "mail2_fax"),
            ("A", "a"),
            ("already_snake", "already_snake"),
        ];
        for (name, snake) in names {
            assert_eq!(snake_case(name), snake);
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() -> syn::Result<()> {
        let long = "x".repeat(129);
        for attribute in ["kind = \"\"", "kind = \"ä\"", "name = \"x\"", &format!("kind = \"{long}\"")] {
            let input = syn::parse_str(&format!("#[job({attribute})] struct Work;"))?;
            assert!(job_kind(&input).is_err(), "{attribute}");
        }
        Ok(())
    }
}
