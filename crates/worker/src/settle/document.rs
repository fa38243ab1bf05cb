//! Documents of verdicts that the store does not take: cut or replaced, and the verdict stays what it was.

use leasehold_core::{Json, Verdict};

/// Room for what is said beside a text that is cut.
const ROOM: usize = 100;

/// The same verdict with a document of at most `limit` bytes.
pub(super) fn fit(verdict: Verdict, limit: usize) -> Verdict {
    match verdict {
        Verdict::Done(result) if result.as_str().len() > limit => {
            Verdict::Done(too_long("result", &result, limit))
        }
        Verdict::Retry { error, after } => Verdict::Retry { error: fit_error(error, limit), after },
        Verdict::Dead { error } => Verdict::Dead { error: fit_error(error, limit) },
        Verdict::Discard { reason } => Verdict::Discard { reason: fit_reason(reason, limit) },
        verdict => verdict,
    }
}

/// The same verdict with a document that says why the store did not take it.
pub(super) fn replace(verdict: Verdict, why: &str) -> Verdict {
    let said = |document: &Json| {
        Json::error(format_args!("{}; the store refused the rest: {why}", cut(&text(document), ROOM)))
    };
    match verdict {
        Verdict::Done(_) => Verdict::Done(refused(why)),
        Verdict::Retry { error, after } => Verdict::Retry { error: said(&error), after },
        Verdict::Dead { error } => Verdict::Dead { error: said(&error) },
        Verdict::Discard { .. } => Verdict::Discard { reason: refused(why) },
        verdict @ Verdict::Snooze { .. } => verdict,
    }
}

/// How long the document of a verdict is.
pub(super) fn bytes(verdict: &Verdict) -> usize {
    match verdict {
        Verdict::Done(document)
        | Verdict::Retry { error: document, .. }
        | Verdict::Dead { error: document }
        | Verdict::Discard { reason: document } => document.as_str().len(),
        Verdict::Snooze { .. } => 0,
    }
}

/// The same verdict with nothing to say.
pub(super) fn empty(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Done(_) => Verdict::done(),
        Verdict::Retry { after, .. } => Verdict::Retry { error: Json::null(), after },
        Verdict::Dead { .. } => Verdict::Dead { error: Json::null() },
        Verdict::Discard { .. } => Verdict::Discard { reason: Json::null() },
        verdict @ Verdict::Snooze { .. } => verdict,
    }
}

/// An error whose text is cut. It keeps its beginning, where the cause is.
fn fit_error(error: Json, limit: usize) -> Json {
    let bytes = error.as_str().len();
    if bytes <= limit {
        return error;
    }
    let text = text(&error);
    shorter(&text, limit, |text| Json::error(format_args!("{text}… (cut, it was {bytes} bytes long)")))
}

fn fit_reason(reason: Json, limit: usize) -> Json {
    let bytes = reason.as_str().len();
    if bytes <= limit {
        return reason;
    }
    let text = text(&reason);
    shorter(&text, limit, |text| {
        Json::new(&format!("{text}… (cut, it was {bytes} bytes long)")).unwrap_or_else(|_| Json::null())
    })
}

/// As much of the text as fits: escapes make it longer than it is.
fn shorter(text: &str, limit: usize, document: impl Fn(&str) -> Json) -> Json {
    let mut bytes = limit.saturating_sub(ROOM);
    while bytes > 0 {
        let document = document(cut(text, bytes));
        if document.as_str().len() <= limit {
            return document;
        }
        bytes /= 2;
    }
    Json::null()
}

/// What an error or a reason says: the text of `{"error": text}` and of a plain text, else the JSON.
fn text(document: &Json) -> String {
    #[derive(serde::Deserialize)]
    struct Error {
        error: String,
    }
    let error = document.to::<Error>().map(|error| error.error);
    error.or_else(|_| document.to::<String>()).unwrap_or_else(|_| document.as_str().to_owned())
}

fn too_long(what: &str, document: &Json, limit: usize) -> Json {
    let said =
        refused(&format!("the {what} is {} bytes long, the limit is {limit}", document.as_str().len()));
    if said.as_str().len() <= limit { said } else { Json::null() }
}

/// In place of a result or a reason that is not kept.
pub(crate) fn refused(why: &str) -> Json {
    Json::new(&serde_json::json!({ "refused": why })).unwrap_or_else(|_| Json::null())
}

/// The beginning of a text, of at most so many bytes.
fn cut(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use leasehold_core::{Delay, RetryAfter};
    use proptest::prelude::{any, proptest};

    use super::*;

    fn after() -> RetryAfter {
        RetryAfter::Delay(Delay::new(std::time::Duration::from_secs(86_400)).unwrap())
    }

    #[test]
    fn a_text_is_cut_before_the_character_that_does_not_fit() {
        assert_eq!(cut("a\u{e9}b", 2), "a");
        assert_eq!(cut("a\u{e9}b", 3), "a\u{e9}");
        assert_eq!(cut("\u{1f980}", 3), "");
        assert_eq!(cut("ab", 3), "ab");
    }

    fn document(verdict: &Verdict) -> &Json {
        match verdict {
            Verdict::Done(document)
            | Verdict::Retry { error: document, .. }
            | Verdict::Dead { error: document }
            | Verdict::Discard { reason: document } => document,
            Verdict::Snooze { .. } => panic!("no document"),
        }
    }

    fn all(text: &str) -> [Verdict; 4] {
        [
            Verdict::done_with(text).unwrap(),
            Verdict::Retry { error: Json::error(text), after: after() },
            Verdict::dead(text),
            Verdict::discard(text),
        ]
    }

    #[test]
    fn a_verdict_that_is_too_long_stays_what_it_was() {
        for said in all(&"x".repeat(5000)) {
            let (fits, replaced) = (fit(said.clone(), 1000), replace(said.clone(), "it is too long"));
            for verdict in [&fits, &replaced, &empty(said.clone())] {
                assert_eq!(std::mem::discriminant(verdict), std::mem::discriminant(&said));
                assert!(document(verdict).as_str().len() <= 1000, "{verdict:?}");
            }
            if let Verdict::Retry { after: kept, .. } = fits {
                assert_eq!(kept, after());
            }
        }
        let Verdict::Dead { error } = fit(Verdict::dead(format!("the cause{}", "x".repeat(5000))), 1000)
        else {
            panic!("not dead")
        };
        assert!(error.as_str().starts_with(r#"{"error":"the causexxx"#), "{error:?}");
    }

    #[test]
    fn what_is_just_short_enough_is_left_alone() {
        for said in all("text") {
            let bytes = bytes(&said);
            assert_eq!(fit(said.clone(), bytes), said);
            assert_ne!(fit(said.clone(), bytes - 1), said);
        }
    }

    #[test]
    fn a_result_that_is_too_long_says_so_if_there_is_room_for_that() {
        let fitted = |limit| document(&fit(Verdict::done_with(&"x".repeat(5000)).unwrap(), limit)).clone();
        assert_eq!(fitted(1000), refused("the result is 5002 bytes long, the limit is 1000"));
        assert_eq!(fitted(20), Json::null());
    }

    #[test]
    fn a_text_whose_characters_are_escaped_is_cut_by_halves_until_it_fits() {
        let fitted = fit(Verdict::dead("\"".repeat(5000)), 1000);
        assert!((900..=1000).contains(&bytes(&fitted)), "{fitted:?}");
    }

    proptest! {
        #[test]
        fn what_fits_is_left_alone_and_the_rest_is_made_to_fit(text in any::<String>(), limit in 10_usize..400) {
            let text = text.replace('\0', "");
            for said in all(&text) {
                let fitted = fit(said.clone(), limit);
                assert!(document(&fitted).as_str().len() <= limit);
                if document(&said).as_str().len() <= limit {
                    assert_eq!(fitted, said);
                }
            }
        }
    }
}
