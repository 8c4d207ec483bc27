//! Where the programs under test are.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

/// `kli-daemon`, built with the same profile as the test that asks.
pub fn daemon() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| find("kli-daemon"))
}

/// `kli`, likewise.
pub fn kli() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| find("kli"))
}

/// A test lies in `target/PROFILE/deps`, a program in `target/PROFILE`. Cargo builds the programs of the other
/// packages only with `--workspace`, so one may be missing, or, worse, be an old one: both are said.
fn find(name: &str) -> PathBuf {
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
    for source in sources(&path.with_extension("d")) {
        let is_newer = modified(&source).is_some_and(|changed| changed > built);
        assert!(!is_newer, "{name} is older than {}: {advice}", source.display());
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

/// What cargo noted that a program was made from, as a make rule: `TARGET: FILE FILE …`, a space as `\ `.
fn sources(rule: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(rule).unwrap_or_default();
    let files = text.split_once(": ").map_or("", |(_, files)| files).trim();
    files.replace("\\ ", "\0").split(' ').map(|file| PathBuf::from(file.replace('\0', " "))).collect()
}
