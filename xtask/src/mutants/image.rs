//! A program that was built, with a fault in one of its texts.
//!
//! A text that `include_str!` took in stands in the program letter by letter, once or several times. A fault is as long as what it
//! replaces, so that it can be put in without building anything.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::text::Text;
use crate::step::{Failure, Outcome};

/// The bytes of a program, and where a copy with a fault is written.
pub(super) struct Image {
    bytes: Vec<u8>,
    copy: PathBuf,
}

impl Image {
    /// Reads `program`; copies are written to `copy`.
    pub(super) fn read(program: &Path, copy: PathBuf) -> Outcome<Self> {
        let bytes = fs::read(program).map_err(|error| failed("read", program, &error))?;
        Ok(Self { bytes, copy })
    }

    /// Where a text stands; several times, if it is part of several others.
    pub(super) fn places(&self, text: &Text) -> Outcome<Vec<usize>> {
        let places = find(&self.bytes, text.text.as_bytes());
        if places.is_empty() {
            return Err(Failure::new(
                format!("{} is no part of the program", text.name),
                "include it by `include_str!`, or delete it",
            ));
        }
        Ok(places)
    }

    /// Writes the program with `text` at these places.
    pub(super) fn write(&mut self, places: &[usize], text: &str) -> Outcome<&Path> {
        let before = places.first().map(|place| self.bytes[*place..*place + text.len()].to_vec());
        self.put(places, text.as_bytes());
        let written = fs::write(&self.copy, &self.bytes)
            .and_then(|()| fs::set_permissions(&self.copy, fs::Permissions::from_mode(0o755)));
        self.put(places, &before.unwrap_or_default());
        written.map_err(|error| failed("written", &self.copy, &error))?;
        Ok(&self.copy)
    }

    fn put(&mut self, places: &[usize], text: &[u8]) {
        for place in places {
            self.bytes[*place..*place + text.len()].copy_from_slice(text);
        }
    }
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{} cannot be {what}: {error}", path.display()), "see the disk and the rights")
}

/// Every place of `wanted`.
fn find(bytes: &[u8], wanted: &[u8]) -> Vec<usize> {
    let Some((first, _)) = wanted.split_first() else { return Vec::new() };
    let mut places = Vec::new();
    let mut from = 0;
    while let Some(step) = bytes[from..].iter().position(|byte| byte == first) {
        let place = from + step;
        if bytes[place..].starts_with(wanted) {
            places.push(place);
        }
        from = place + 1;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_put_in_wherever_the_text_stands_and_taken_out_again() {
        let folder = std::env::temp_dir();
        let [program, copy] =
            ["program", "copy"].map(|name| folder.join(format!("leasehold-{name}-{}", std::process::id())));
        fs::write(&program, b"..SELECT 1....SELECT 1.").unwrap_or_default();
        let mut image = Image::read(&program, copy.clone()).unwrap();
        let text = Text { name: "a".into(), text: "SELECT 1".into() };
        let places = image.places(&text).unwrap();
        image.write(&places, "SELECT 2").unwrap();
        assert_eq!(fs::read(&copy).unwrap_or_default(), b"..SELECT 2....SELECT 2.");
        image.write(&[], "").unwrap();
        assert_eq!(fs::read(&copy).unwrap_or_default(), b"..SELECT 1....SELECT 1.");
        assert!(image.places(&Text { name: "b".into(), text: "SELECT 3".into() }).is_err());
        let removed = [&program, &copy].map(|path| fs::remove_file(path).is_ok());
        assert_eq!(removed, [true; 2]);
    }
}
