//! Rules of this repository that no other tool knows.
//!
//! A file of Rust has one subject: beyond 450 lines it is worth a look (a warning). Nothing is left undone and no test
//! is switched off (errors). Comments may name the macros, as a sketch in the docs does for its reader to fill in.

use std::path::{Path, PathBuf};

use crate::step::{self, Failure, Outcome};
use crate::workspace;

const LONG: usize = 450;

/// What must not stand in a file of Rust. Written in halves, since this is one.
const FORBIDDEN: [(&str, &str); 3] = [
    (concat!("#[", "ignore"), "a test that is switched off proves nothing"),
    (concat!("todo", "!("), "finish it, or leave it out"),
    (concat!("unimplemented", "!("), "finish it, or return Unsupported"),
];

pub(crate) fn check() -> Outcome {
    step::step("rules of the repository", || {
        let root = workspace::root();
        let mut broken = Vec::new();
        for file in rust_files(&root)? {
            let text = std::fs::read_to_string(&file).map_err(|error| unreadable(&file, &error))?;
            let name = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
            if let Some(lines) = too_long(&text) {
                step::warn(&format!("{name} has {lines} lines; split what has more than one subject"));
            }
            broken.extend(broken_rules(&text).map(|(line, rule)| format!("  {name}:{line}: {rule}")));
        }
        if broken.is_empty() {
            return Ok(());
        }
        Err(Failure::new(format!("the rules of the repository\n{}", broken.join("\n")), "mend these lines"))
    })
}

/// Every `.rs` file below `directory`, but for build output and hidden directories.
fn rust_files(directory: &Path) -> Outcome<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut paths: Vec<_> = match entries {
        Ok(entries) => entries.into_iter().map(|entry| entry.path()).collect(),
        Err(error) => return Err(unreadable(directory, &error)),
    };
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() && !is_skipped(&path) {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(files)
}

fn is_skipped(directory: &Path) -> bool {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    name == "target" || name.starts_with('.') || directory.is_symlink()
}

fn too_long(text: &str) -> Option<usize> {
    Some(text.lines().count()).filter(|lines| *lines > LONG)
}

/// The rules that `text` breaks, each with its line.
fn broken_rules(text: &str) -> impl Iterator<Item = (usize, String)> {
    text.lines().enumerate().flat_map(|(index, line)| broken_by(line).map(move |rule| (index + 1, rule)))
}

fn broken_by(line: &str) -> impl Iterator<Item = String> {
    let code = if line.trim_start().starts_with("//") { "" } else { line };
    let forbidden = FORBIDDEN.iter().filter(|(pattern, _)| code.contains(pattern));
    let forbidden = forbidden.map(|(pattern, why)| format!("{pattern}: {why}"));
    let doctest =
        switched_off_doctest(line).then(|| "a doctest that is not compiled: use no_run or text".to_owned());
    forbidden.chain(doctest)
}

/// Whether `line` opens a code block of the docs that is marked `ignore`.
fn switched_off_doctest(line: &str) -> bool {
    let doc = ["///", "//!"].iter().find_map(|mark| line.trim_start().strip_prefix(mark));
    let info = doc.and_then(|doc| doc.trim_start().strip_prefix("```"));
    info.is_some_and(|info| info.split([',', ' ']).any(|word| word.starts_with("ignore")))
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{} cannot be read: {error}", path.display()), "see who owns it")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken_lines(text: &str) -> Vec<usize> {
        broken_rules(text).map(|(line, _)| line).collect()
    }

    #[test]
    fn what_is_undone_or_switched_off_is_found() {
        for (pattern, _) in FORBIDDEN {
            assert_eq!(broken_lines(&format!("fn main() {{\n    {pattern}")), [2], "{pattern}");
        }
    }

    #[test]
    fn doctests_that_are_not_compiled_are_found() {
        for line in ["/// ```ignore", "    //! ```rust,ignore", "/// ```rust, ignore", "/// ```ignore-wasm32"]
        {
            assert_eq!(broken_lines(line), [1], "{line}");
        }
    }

    #[test]
    fn what_only_sounds_alike_is_allowed() {
        for line in ["/// ```no_run", "/// ```", "let ignored = Todo::new();", "/// Calls that ignore it."] {
            assert_eq!(broken_lines(line), [0; 0], "{line}");
        }
    }

    #[test]
    fn a_sketch_in_the_docs_may_leave_a_gap() {
        assert_eq!(broken_lines(concat!("/// todo", "!(\"open the database\")")), [0; 0]);
    }

    #[test]
    fn a_file_is_long_beyond_450_lines() {
        assert_eq!(too_long(&"x\n".repeat(450)), None);
        assert_eq!(too_long(&"x\n".repeat(451)), Some(451));
    }
}
