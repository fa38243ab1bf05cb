//! Each crate alone, and each feature of each crate alone: what compiles only beside others does not count. Packages that are
//! never published are left out: nobody can build them but in this workspace.

use crate::metadata::{Metadata, Package};
use crate::step::{self, Outcome};
use crate::workspace::cargo;

pub(crate) fn check(metadata: &Metadata) -> Outcome {
    metadata.members().filter(|package| package.is_published()).try_for_each(check_package)
}

fn check_package(package: &Package) -> Outcome {
    check_with(&package.name, None)?;
    package.features().try_for_each(|feature| check_with(&package.name, Some(feature)))
}

fn check_with(package: &str, feature: Option<&str>) -> Outcome {
    let mut command = cargo(["check", "--quiet", "--locked", "--package", package, "--no-default-features"]);
    let name = match feature {
        None => format!("{package} alone"),
        Some(feature) => {
            command.args(["--features", feature]);
            format!("{package} with {feature} alone")
        }
    };
    step::run(&name, &mut command, "name in Cargo.toml what the crate or the feature needs by itself")
}
