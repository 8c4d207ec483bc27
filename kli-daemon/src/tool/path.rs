//! Paths as models write them: relative to the work directory, with `~`, sometimes with a leading `@`.

use std::path::{Path, PathBuf};

use super::ToolOutput;
use crate::text;

/// The path that is meant; it need not exist. A relative one counts from the work directory.
pub(crate) fn resolve(path: &str, work_dir: &Path) -> PathBuf {
    let plain = join(path, work_dir);
    // `@src/x.rs` is how people name files in prompts, and models copy it.
    match path.strip_prefix('@') {
        Some(rest) if !rest.is_empty() && std::fs::symlink_metadata(&plain).is_err() => join(rest, work_dir),
        _ => plain,
    }
}

fn join(path: &str, work_dir: &Path) -> PathBuf {
    let home = || directories::BaseDirs::new().map(|dirs| dirs.home_dir().to_owned());
    match path.strip_prefix('~') {
        Some("") => home().unwrap_or_else(|| work_dir.join(path)),
        Some(rest) if rest.starts_with('/') => match home() {
            Some(home) => home.join(rest.trim_start_matches('/')),
            None => work_dir.join(path),
        },
        _ => work_dir.join(path),
    }
}

/// The path for a line of output: relative where it lies inside `base`.
pub(crate) fn display(path: &Path, base: &Path) -> String {
    let shown = match path.strip_prefix(base) {
        Ok(rest) if rest.as_os_str().is_empty() => ".".into(),
        Ok(rest) => rest.to_string_lossy(),
        Err(_) => path.to_string_lossy(),
    };
    text::printable(&shown).into_owned()
}

/// The answer of every tool that needs the work directory when it is gone.
pub(crate) fn check_work_dir(work_dir: &Path) -> Result<(), ToolOutput> {
    if work_dir.is_dir() {
        return Ok(());
    }
    Err(ToolOutput::error(work_dir_gone(work_dir)))
}

pub(crate) fn work_dir_gone(work_dir: &Path) -> String {
    format!(
        "The work directory {} does not exist any more. The session needs another one (open it again with a new \
         work directory), or the directory must be made again.",
        text::printable(&work_dir.to_string_lossy())
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_resolve() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("@real"), "").unwrap();
        let home = directories::BaseDirs::new().unwrap().home_dir().to_owned();
        for (path, want) in [
            ("a/b", dir.path().join("a/b")),
            ("./a", dir.path().join("./a")),
            ("/etc/x", "/etc/x".into()),
            ("~", home.clone()),
            ("~/x", home.join("x")),
            ("~//etc/x", home.join("etc/x")),
            ("~user/x", dir.path().join("~user/x")),
            ("@a/b", dir.path().join("a/b")),
            ("@/etc/x", "/etc/x".into()),
            ("@real", dir.path().join("@real")),
            ("@", dir.path().join("@")),
        ] {
            assert_eq!(resolve(path, dir.path()), want, "{path}");
        }
    }

    #[test]
    fn paths_are_shown_relative_and_on_one_line() {
        for (path, want) in [("/w/a/b", "a/b"), ("/w", "."), ("/other", "/other"), ("/w/a\nb", "a\u{fffd}b")] {
            assert_eq!(display(Path::new(path), Path::new("/w")), want);
        }
    }
}
