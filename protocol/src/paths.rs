//! Where the daemon and its clients meet: pure functions of what the environment says, so that both sides agree.
//!
//! Reading the environment, and making directories, is left to them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The longest path of a Unix socket that the system takes, in bytes.
pub const MAX_SOCKET_PATH: usize = if cfg!(any(target_os = "linux", target_os = "android")) { 107 } else { 103 };

/// The socket's name in its directory.
pub const SOCKET_NAME: &str = "kli.sock";

/// How the names of the daemon's log files in the state directory begin and end; the day is in between.
pub const LOG_PREFIX: &str = "kli-daemon";
pub const LOG_SUFFIX: &str = "log";

/// What decides on the socket's path, first come first served. A variable that is empty counts as unset.
#[derive(Clone, Debug, Default)]
pub struct SocketPathSources {
    /// `--socket`
    pub flag: Option<PathBuf>,
    /// `$KLI_SOCKET`
    pub kli_socket: Option<OsString>,
    /// `$XDG_RUNTIME_DIR`; a relative one is passed over, as its specification says.
    pub xdg_runtime_dir: Option<OsString>,
    /// Our own state directory.
    pub state_dir: Option<PathBuf>,
}

impl SocketPathSources {
    /// The socket's path; none where nothing says where it could lie.
    pub fn socket_path(&self) -> Option<PathBuf> {
        let set = |value: &Option<OsString>| value.clone().filter(|v| !v.is_empty()).map(PathBuf::from);
        if let Some(path) = self.flag.clone().or_else(|| set(&self.kli_socket)) {
            return Some(path);
        }
        if let Some(dir) = set(&self.xdg_runtime_dir).filter(|d| d.is_absolute()) {
            return Some(dir.join("kli").join(SOCKET_NAME));
        }
        self.state_dir.as_ref().map(|dir| dir.join(SOCKET_NAME))
    }
}

/// Refuses a path that the system would refuse or cut, with a sentence that names the limit.
pub fn check_socket_path(path: &Path) -> Result<(), String> {
    let bytes = path.as_os_str().len();
    if bytes <= MAX_SOCKET_PATH {
        return Ok(());
    }
    Err(format!(
        "the socket path has {bytes} bytes, the system takes at most {MAX_SOCKET_PATH}: {}; give a shorter one with --socket or $KLI_SOCKET",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_source_that_is_set_decides() {
        let path = |flag: &str, kli: &str, run: &str, state: &str| {
            let some = |s: &str| (s != "-").then(|| OsString::from(s));
            SocketPathSources {
                flag: some(flag).map(PathBuf::from),
                kli_socket: some(kli),
                xdg_runtime_dir: some(run),
                state_dir: some(state).map(PathBuf::from),
            }
            .socket_path()
            .map(|p| p.display().to_string())
            .unwrap_or_default()
        };
        assert_eq!(path("/f", "/k", "/r", "/s"), "/f");
        assert_eq!(path("-", "/k", "/r", "/s"), "/k");
        assert_eq!(path("-", "-", "/r", "/s"), "/r/kli/kli.sock");
        assert_eq!(path("-", "", "/r", "/s"), "/r/kli/kli.sock");
        assert_eq!(path("-", "", "", "/s"), "/s/kli.sock");
        assert_eq!(path("-", "-", "run", "/s"), "/s/kli.sock");
        assert_eq!(path("-", "-", "-", "-"), "");
    }

    #[test]
    fn a_path_that_is_too_long_is_refused_by_its_length() {
        let of = |n: usize| PathBuf::from(format!("/{}", "x".repeat(n - 1)));
        assert_eq!(check_socket_path(&of(MAX_SOCKET_PATH)), Ok(()));
        let e = check_socket_path(&of(MAX_SOCKET_PATH + 1)).unwrap_err();
        assert!(e.contains(&MAX_SOCKET_PATH.to_string()), "{e}");
    }
}
