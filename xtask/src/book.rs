//! The documents: every link to a file of the repository leads somewhere, and the book's table of contents has every page.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::step::{self, Failure, Outcome};
use crate::workspace;

pub(crate) fn check() -> Outcome {
    step::step("links of the documents", || {
        let root = workspace::root();
        let book = markdown_files(&root.join("docs"))?;
        let mut broken = Vec::new();
        for file in markdown_files(&root)?.iter().chain(&book).chain(&markdown_files(&root.join("docs/adr"))?)
        {
            let name = file.strip_prefix(&root).unwrap_or(file).display();
            let folder = file.parent().unwrap_or(&root);
            let dead = links(&read(file)?).into_iter().filter(|link| !folder.join(link).exists());
            broken.extend(dead.map(|link| format!("  {name}: {link} is not there")));
        }
        let listed: BTreeSet<String> = links(&read(&root.join("docs/SUMMARY.md"))?).into_iter().collect();
        let names = book.iter().filter_map(|file| Some(file.file_name()?.to_str()?.to_owned()));
        let missing = names.filter(|name| name != "SUMMARY.md" && !listed.contains(name));
        broken.extend(missing.map(|name| format!("  docs/SUMMARY.md: {name} is not listed")));
        if broken.is_empty() {
            return Ok(());
        }
        Err(Failure::new(format!("the documents\n{}", broken.join("\n")), "mend these links"))
    })
}

/// The Markdown files in a folder, but not below it.
fn markdown_files(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = entries.map_err(|error| unreadable(folder, &error))?;
    let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.sort();
    Ok(paths)
}

/// The files that a text links to: without their anchors, and without other sites. Code is no text.
fn links(text: &str) -> Vec<String> {
    let mut code = false;
    let prose = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    });
    let targets = prose.flat_map(|line| line.split("](").skip(1)).filter_map(|rest| rest.split_once(')'));
    let files = targets.filter_map(|(target, _)| target.split('#').next());
    files.filter(|file| !file.is_empty() && !file.contains("://")).map(str::to_owned).collect()
}

fn read(file: &Path) -> Outcome<String> {
    std::fs::read_to_string(file).map_err(|error| unreadable(file, &error))
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{} cannot be read: {error}", path.display()), "see who owns it")
}

#[cfg(test)]
mod tests {
    use super::links;

    #[test]
    fn links_to_files_are_found_and_others_are_not() {
        let text = "see [a](a.md#there), [b](../b.rs) and [c](https://c.example/d.md) or [here](#here)\n```\n[d](d.md)\n```\n- [e](e.md)";
        assert_eq!(links(text), ["a.md", "../b.rs", "e.md"]);
    }
}
