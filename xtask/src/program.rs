//! How each test program is run: with which options, and what it needs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::artifact::{Kind, Program};
use crate::parallel::Job;

/// Packages of which every test needs a server.
const SERVER_PACKAGES: [&str; 5] =
    ["leasehold-postgres", "leasehold-mysql", "leasehold-redis", "leasehold-scenarios", "leasehold-servers"];

/// The folders of the packages whose example programs are run; those of other packages are only built.
const EXAMPLES: [&str; 3] = ["examples", "custom_backend", "metrics"];

/// What is known of a program that is not like the others.
struct Habit {
    folder: &'static str,
    target: &'static str,
    /// How many of its tests run at once, if not as many as there are processors: more, where tests wait for servers.
    threads: Option<usize>,
    /// About how many seconds it takes: what takes longest is started first.
    weight: u32,
    /// The module whose tests need a server, in a program that needs none otherwise.
    served: Option<&'static str>,
}

/// Times are from one run on two cores.
const HABITS: &[Habit] = &[
    Habit { folder: "backend-postgres", target: "it", threads: Some(4), weight: 300, served: None },
    Habit { folder: "backend-postgres", target: "conformance", threads: Some(8), weight: 250, served: None },
    Habit { folder: "backend-mysql", target: "conformance", threads: Some(8), weight: 240, served: None },
    Habit { folder: "backend-mysql", target: "it", threads: Some(4), weight: 200, served: None },
    Habit { folder: "backend-redis", target: "conformance", threads: Some(3), weight: 150, served: None },
    Habit { folder: "backend-redis", target: "it", threads: Some(4), weight: 100, served: None },
    Habit { folder: "conformance", target: "saboteurs", threads: Some(8), weight: 120, served: None },
    Habit { folder: "conformance", target: "it", threads: None, weight: 30, served: None },
    Habit { folder: "backend-sqlite", target: "conformance", threads: Some(6), weight: 100, served: None },
    Habit { folder: "backend-sqlite", target: "it", threads: Some(4), weight: 90, served: None },
    Habit { folder: "backend-memory", target: "conformance", threads: Some(4), weight: 60, served: None },
    Habit { folder: "custom_backend", target: "conformance", threads: Some(6), weight: 60, served: None },
    Habit { folder: "worker", target: "it", threads: Some(4), weight: 150, served: Some("processes::") },
    Habit { folder: "scenarios", target: "rooms", threads: Some(4), weight: 120, served: None },
];

impl Program {
    /// Whether it is one that `cargo xtask test` runs.
    pub(crate) fn is_run(&self, examples: bool) -> bool {
        match self.kind {
            Kind::Unit | Kind::Test => true,
            Kind::Example => examples && EXAMPLES.contains(&self.short_folder()),
            Kind::Bench => false,
        }
    }

    /// The last part of the folder of its package.
    fn short_folder(&self) -> &str {
        self.folder.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    fn habit(&self) -> Option<&'static Habit> {
        let is_this = |habit: &&Habit| habit.folder == self.short_folder() && habit.target == self.target;
        HABITS.iter().find(is_this).filter(|_| self.kind == Kind::Test)
    }
}

/// Whether every test of the package needs a server.
pub(crate) fn is_server_package(name: &str) -> bool {
    SERVER_PACKAGES.contains(&name)
}

/// Whether the program as a whole needs a server.
pub(crate) fn needs_servers(program: &Program) -> bool {
    let package = program.short_folder().replace("backend-", "");
    is_server_package(&format!("leasehold-{package}"))
}

/// The program as Cargo would run it, with these arguments.
pub(crate) fn job(program: &Program, args: &[String], no_servers: bool) -> Job {
    let mut command = Command::new(&program.path);
    command.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
    // The unit tests of a procedural macro are linked with the compiler's own libraries, which Cargo would show the way to.
    if let Some(libraries) = libraries() {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    let habit = program.habit();
    if program.kind != Kind::Example {
        if let Some(threads) = habit.and_then(|habit| habit.threads)
            && !args.iter().any(|arg| arg.starts_with("--test-threads"))
        {
            command.arg(format!("--test-threads={threads}"));
        }
        if let Some(served) = habit.and_then(|habit| habit.served).filter(|_| no_servers) {
            command.args(["--skip", served]);
        }
        command.args(args);
    }
    Job { name: name(program), command, weight: habit.map_or(10, |habit| habit.weight) }
}

/// Where the libraries of the compiler are.
fn libraries() -> Option<PathBuf> {
    static LIBRARIES: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        let said = Command::new("rustc").args(["--print", "target-libdir"]).output().ok()?;
        let folder = String::from_utf8(said.stdout).ok()?;
        said.status.success().then(|| PathBuf::from(folder.trim_end()))
    });
    LIBRARIES.clone()
}

/// `backend-memory: conformance`.
fn name(program: &Program) -> String {
    let kind = match program.kind {
        Kind::Unit => "unit tests",
        Kind::Example => return format!("example {}", program.target),
        Kind::Test | Kind::Bench => &program.target,
    };
    let folder = program.folder.file_name().map(Path::new).unwrap_or(&program.folder);
    format!("{}: {kind}", folder.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(folder: &str, target: &str, kind: Kind) -> Program {
        Program { folder: folder.into(), target: target.into(), kind, path: "/t/x".into() }
    }

    fn arguments(job: &Job) -> Vec<String> {
        job.command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_suite_that_waits_for_servers_gets_more_threads() {
        let suite = program("/r/crates/backend-mysql", "conformance", Kind::Test);
        let job = job(&suite, &["dequeue".to_owned()], false);
        assert_eq!(
            (job.name.as_str(), arguments(&job)),
            ("backend-mysql: conformance", vec!["--test-threads=8".to_owned(), "dequeue".to_owned()])
        );
        assert!(needs_servers(&suite));
    }

    #[test]
    fn without_servers_only_the_tests_that_need_one_are_left_out() {
        let worker = program("/r/crates/worker", "it", Kind::Test);
        assert!(!needs_servers(&worker));
        assert_eq!(arguments(&job(&worker, &[], true)), ["--test-threads=4", "--skip", "processes::"]);
    }

    #[test]
    fn examples_are_run_with_everything_and_benches_never() {
        let example = program("/r/examples", "quickstart", Kind::Example);
        assert!(example.is_run(true) && !example.is_run(false));
        assert!(!program("/r/crates/worker", "bench_worker", Kind::Bench).is_run(true));
        assert!(arguments(&job(&example, &[], false)).is_empty());
    }
}
