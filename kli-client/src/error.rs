//! What can go wrong between a client and the daemon. Every message is a sentence for a person.

use std::path::PathBuf;

use kli_protocol::ApiError;

/// A call that brought no result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The daemon answered with an error.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The daemon could not be reached, so nothing was asked of it.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Whether the call was carried out is not known.
    #[error("the connection to the daemon was lost during `{method}`: {reason}")]
    Lost { method: String, reason: String },
    #[error("the daemon's answer to `{method}` makes no sense here: {reason}")]
    BadReply { method: String, reason: String },
    #[error("the parameters of `{method}` cannot be written as JSON: {reason}")]
    BadParams { method: String, reason: String },
}

impl CallError {
    /// The daemon's own error, if it is one.
    pub fn api(&self) -> Option<&ApiError> {
        match self {
            CallError::Api(e) => Some(e),
            _ => None,
        }
    }
}

/// No connection to a daemon.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(
        "there is no place for the socket: neither --socket, $KLI_SOCKET, $XDG_RUNTIME_DIR nor a home directory is set"
    )]
    NoPlace,
    #[error("{0}")]
    PathTooLong(String),
    #[error("no daemon runs at {path}")]
    NoDaemon { path: PathBuf },
    #[error("{path} is not a socket; move it away, or give another path with --socket or $KLI_SOCKET")]
    NotASocket { path: PathBuf },
    #[error("cannot connect to {path}: {source}")]
    Socket { path: PathBuf, source: std::io::Error },
    #[error("cannot prepare {path}, where the daemon is started: {source}")]
    StartFile { path: PathBuf, source: std::io::Error },
    #[error("no daemon runs, and no `kli-daemon` is found beside {beside} or on PATH to start one")]
    NoProgram { beside: PathBuf },
    #[error("cannot start {program}: {source}")]
    Spawn { program: PathBuf, source: std::io::Error },
    #[error("the daemon could not start ({status}): {said}")]
    Exited { status: String, said: String },
    #[error("the daemon did not answer at {path} within {seconds} s; `kli daemon logs` may say why. {said}")]
    TimedOut { path: PathBuf, seconds: u64, said: String },
    #[error("`{host}` is no name of a host")]
    BadHost { host: String },
    #[error(
        "the daemon (version {version}) speaks protocol {theirs}, this program speaks {ours}: stop the daemon with `kli daemon stop`, or use the `kli` of its version"
    )]
    Protocol { version: String, theirs: u32, ours: u32 },
    #[error("the other side closed the connection at once{hint}")]
    Closed { hint: String },
    #[error("what answers at the other side is no kli-daemon: {reason}")]
    NotOurs { reason: String },
}

impl ConnectError {
    /// Trying again does not mend it.
    pub(crate) fn is_final(&self) -> bool {
        matches!(
            self,
            ConnectError::NoPlace
                | ConnectError::PathTooLong(_)
                | ConnectError::NotASocket { .. }
                | ConnectError::BadHost { .. }
                | ConnectError::Protocol { .. }
        )
    }

    /// On this machine nobody listens.
    pub(crate) fn is_no_daemon(&self) -> bool {
        matches!(self, ConnectError::NoDaemon { .. })
    }
}
