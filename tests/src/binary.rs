//! Where the programs under test are.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

/// `kli-daemon`, built with the same profile as the test that asks.
pub fn daemon() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| find("kli-daemon", &["protocol/src", "kli-daemon/src"]))
}

/// `kli`, likewise.
pub fn kli() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| find("kli", &["protocol/src", "kli-client/src"]))
}

/// A test lies in `target/PROFILE/deps`, a program in `target/PROFILE`. Cargo builds the programs of the other
/// packages only with `--workspace`, so one may be missing, or, worse, be an old one: both are said.
fn find(name: &str, sources: &[&str]) -> PathBuf {
    let directory = match std::env::var_os("KLI_TEST_BIN_DIR") {
        Some(directory) => PathBuf::from(directory),
        None => {
            let test = std::env::current_exe().expect("the path of this test");
            test.ancestors().nth(2).expect("a test lies in target/PROFILE/deps").to_path_buf()
        }
    };
    let path = directory.join(name);
    let advice = format!("run `cargo build --workspace{}`, or all tests with `cargo test --workspace`", profile());
    let built = modified(&path).unwrap_or_else(|| panic!("there is no {}: {advice}", path.display()));
    if std::env::var_os("KLI_TEST_BIN_DIR").is_none() {
        for source in sources {
            let newest = newest(&repository().join(source));
            assert!(newest.is_none_or(|newest| newest <= built), "{name} is older than {source}: {advice}");
        }
    }
    path
}

fn profile() -> &'static str {
    if cfg!(debug_assertions) { "" } else { " --release" }
}

pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository")
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).ok()?.modified().ok()
}

fn newest(directory: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(directory).ok()?;
    entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            if path.is_dir() {
                newest(&path)
            } else {
                modified(&path).filter(|_| path.extension().is_some_and(|e| e == "rs"))
            }
        })
        .max()
}
