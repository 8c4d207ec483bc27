//! The socket's path and the state directory, from this process's environment.

use std::path::PathBuf;

use kli_protocol::paths::{SocketPathSources, check_socket_path};

use crate::error::ConnectError;

/// The directory for logs, history and, where there is no runtime directory, the socket.
pub fn state_dir() -> Option<PathBuf> {
    let dirs = directories::ProjectDirs::from("", "", "kli")?;
    Some(dirs.state_dir().unwrap_or_else(|| dirs.data_local_dir()).to_owned())
}

/// Where the daemon's socket lies: `flag` (`--socket`), else `$KLI_SOCKET`, else `kli/kli.sock` in
/// `$XDG_RUNTIME_DIR`, else `kli.sock` in the state directory. Always absolute.
pub fn socket_path(flag: Option<PathBuf>) -> Result<PathBuf, ConnectError> {
    let sources = SocketPathSources {
        flag,
        kli_socket: std::env::var_os("KLI_SOCKET"),
        xdg_runtime_dir: std::env::var_os("XDG_RUNTIME_DIR"),
        state_dir: state_dir(),
    };
    let path = sources.socket_path().ok_or(ConnectError::NoPlace)?;
    let path = std::path::absolute(&path).map_err(|source| ConnectError::Socket { path, source })?;
    check_socket_path(&path).map_err(ConnectError::PathTooLong)?;
    Ok(path)
}
