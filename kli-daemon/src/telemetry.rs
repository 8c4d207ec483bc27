//! The daemon's log: to stderr, or to files in a directory, a new one each day and the last seven kept.
//!
//! `KLI_LOG` chooses what is logged: a level (`debug`) for the daemon's own code, or the directives of
//! `tracing-subscriber` (`kli_daemon::rpc=debug,hyper=info`). What people write, what models answer and keys are
//! logged at `trace` only; therefore other crates stay at `warn` unless named, and a panic's message, which may
//! quote what it was working on, is at `trace` while its place is an error.

use std::fs::DirBuilder;
use std::io::{self, IsTerminal};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_appender::rolling::{InitError, RollingFileAppender, Rotation};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// Where the log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTo {
    Stderr,
    /// Made (0700) where it is missing.
    Directory(PathBuf),
}

/// Keeps the log going; dropped, it writes what is left.
#[derive(Debug)]
pub struct Telemetry {
    writer: Option<WorkerGuard>,
    lost: ErrorCounter,
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        // Where lines were lost nobody reads the log: the writer would be waited for, and complain to a stdout that
        // may be stuck as well.
        if self.lost.dropped_lines() > 0 {
            std::mem::forget(self.writer.take());
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("cannot make the log directory {path}: {source}")]
    MakeDirectory { path: PathBuf, source: io::Error },
    #[error("cannot open a log file in {path}: {source}")]
    Open { path: PathBuf, source: InitError },
    #[error("KLI_LOG is no log filter: {0}")]
    Filter(#[from] ParseError),
    #[error("a log is already being written")]
    Twice,
}

pub const FILTER_VARIABLE: &str = "KLI_LOG";
/// The files are named `kli-daemon.DATE.log`.
pub const FILE_PREFIX: &str = "kli-daemon";
pub const FILE_SUFFIX: &str = "log";
const MAX_FILES: usize = 7;
/// Lines that may wait to be written. There is room for all of them from the beginning.
const MAX_WAITING: usize = 4096;

/// Starts the log of this process. `filter` is what [`FILTER_VARIABLE`] says, if it is set.
pub fn start(to: LogTo, filter: Option<&str>) -> Result<Telemetry, TelemetryError> {
    let filter = EnvFilter::try_new(directives(filter))?;
    let colours = to == LogTo::Stderr && io::stderr().is_terminal();
    // Bounded, and lossy at the bound: a slow disk, or a pipe that nobody reads, must not hold up a run, and one
    // that was closed must not end it.
    let waiting = NonBlockingBuilder::default().buffered_lines_limit(MAX_WAITING);
    let (lines, writer) = match to {
        LogTo::Stderr => waiting.finish(io::stderr()),
        LogTo::Directory(path) => waiting.finish(files(path)?),
    };
    let lost = lines.error_counter();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(lines);
    let started = log.log_internal_errors(false).try_init();
    started.map_err(|_| TelemetryError::Twice)?;
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "a panic");
        tracing::trace!(message = %panic, "what it said");
    }));
    Ok(Telemetry { writer: Some(writer), lost })
}

fn files(path: PathBuf) -> Result<RollingFileAppender, TelemetryError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
    made.map_err(|source| TelemetryError::MakeDirectory { path: path.clone(), source })?;
    RollingFileAppender::builder()
        .rotation(Rotation::DAILY)
        .filename_prefix(FILE_PREFIX)
        .filename_suffix(FILE_SUFFIX)
        .max_log_files(MAX_FILES)
        .build(&path)
        .map_err(|source| TelemetryError::Open { path, source })
}

/// A level alone is that of our own code; `trace` is of all.
fn directives(filter: Option<&str>) -> String {
    match filter.map(str::trim).filter(|filter| !filter.is_empty()) {
        None => directives(Some("info")),
        Some(level) if level.eq_ignore_ascii_case("trace") => "trace".to_owned(),
        Some(level) if level.chars().all(char::is_alphanumeric) => {
            format!("warn,kli_daemon={level},kli_protocol={level}")
        }
        Some(directives) => directives.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_logged() {
        for (filter, want) in [
            (None, "warn,kli_daemon=info,kli_protocol=info"),
            (Some(" "), "warn,kli_daemon=info,kli_protocol=info"),
            (Some("debug"), "warn,kli_daemon=debug,kli_protocol=debug"),
            (Some("TRACE"), "trace"),
            (Some("hyper=debug"), "hyper=debug"),
        ] {
            assert_eq!(directives(filter), want);
            EnvFilter::try_new(want).unwrap();
        }
        assert!(EnvFilter::try_new(directives(Some("loud"))).is_err());
    }

    #[test]
    fn files_are_kept_in_a_directory_of_our_own() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/log");
        let log = start(LogTo::Directory(path.clone()), None).unwrap();
        tracing::info!("it works");
        drop(log);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        let files: Vec<_> = std::fs::read_dir(&path).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), 1);
        assert!(std::fs::read_to_string(&files[0]).unwrap().contains("it works"));
        assert!(matches!(start(LogTo::Stderr, None), Err(TelemetryError::Twice)));
        let _ = std::panic::take_hook();
    }
}
