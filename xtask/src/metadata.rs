//! What Cargo knows about the workspace and everything that it depends on.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::step::{self, Failure, Outcome};
use crate::workspace;

/// The part of `cargo metadata` that we ask for.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
    resolve: Resolve,
}

/// One package, ours or a stranger's.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    id: String,
    /// Its name.
    pub(crate) name: String,
    /// Its version.
    pub(crate) version: String,
    /// The registries that it may be published to: none, for a package that is never published; all, if it says nothing.
    publish: Option<Vec<String>>,
    /// The oldest Rust that it asks for, if it says.
    pub(crate) rust_version: Option<String>,
    /// Each feature with what it switches on.
    features: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
}

impl Metadata {
    /// Asks Cargo, with all features on. Changes nothing, the lock file neither.
    pub(crate) fn read() -> Outcome<Self> {
        let mut command =
            workspace::cargo(["metadata", "--format-version", "1", "--all-features", "--locked"]);
        let json = step::output(&mut command, "run `cargo check` and commit Cargo.lock if it has changed")?;
        Self::parse(&json)
    }

    fn parse(json: &str) -> Outcome<Self> {
        serde_json::from_str(json).map_err(|error| {
            Failure::new(format!("cargo metadata was not understood: {error}"), "see xtask/src/metadata.rs")
        })
    }

    /// Our own packages.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| self.workspace_members.contains(&package.id))
    }

    /// Every package that some build of the workspace uses, our own too.
    pub(crate) fn resolved(&self) -> impl Iterator<Item = &Package> {
        let used: BTreeSet<&str> = self.resolve.nodes.iter().map(|node| node.id.as_str()).collect();
        self.packages.iter().filter(move |package| used.contains(package.id.as_str()))
    }
}

impl Package {
    /// Whether others can depend on it.
    pub(crate) fn is_published(&self) -> bool {
        self.publish.as_ref().is_none_or(|registries| !registries.is_empty())
    }

    /// The features that can be chosen one by one: all but `default`.
    pub(crate) fn features(&self) -> impl Iterator<Item = &str> {
        self.features.keys().map(String::as_str).filter(|feature| *feature != "default")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::Metadata;

    /// Two members (one with features), one dependency in use and one that is not.
    pub(crate) fn sample() -> Metadata {
        let json = serde_json::json!({
            "packages": [
                { "id": "a", "name": "ours", "version": "0.1.0", "rust_version": "1.88",
                  "features": { "default": ["mock"], "mock": [], "postgres": [] } },
                { "id": "b", "name": "examples", "version": "0.1.0", "publish": [], "rust_version": "1.88", "features": {} },
                { "id": "c", "name": "used", "version": "2.0.0", "rust_version": "1.90.1", "features": {} },
                { "id": "d", "name": "unused", "version": "3.0.0", "rust_version": null, "features": {} },
            ],
            "workspace_members": ["a", "b"],
            "resolve": { "nodes": [{ "id": "a" }, { "id": "b" }, { "id": "c" }] },
            "unknown_to_us": true,
        });
        Metadata::parse(&json.to_string()).unwrap()
    }

    #[test]
    fn what_is_never_published_is_told_apart() {
        let published: Vec<_> = sample().members().map(super::Package::is_published).collect();
        assert_eq!(published, [true, false]);
    }

    fn names<'a>(packages: impl Iterator<Item = &'a super::Package>) -> Vec<&'a str> {
        packages.map(|package| package.name.as_str()).collect()
    }

    #[test]
    fn members_and_what_is_in_use_are_told_apart() {
        let metadata = sample();
        assert_eq!(names(metadata.members()), ["ours", "examples"]);
        assert_eq!(names(metadata.resolved()), ["ours", "examples", "used"]);
    }

    #[test]
    fn default_is_not_a_feature_of_its_own() {
        let metadata = sample();
        let ours = metadata.members().next().unwrap();
        assert_eq!(ours.features().collect::<Vec<_>>(), ["mock", "postgres"]);
    }

    #[test]
    fn what_is_not_metadata_is_refused() {
        let failure = Metadata::parse("{}").unwrap_err().to_string();
        assert!(failure.contains("was not understood"), "{failure}");
    }
}
