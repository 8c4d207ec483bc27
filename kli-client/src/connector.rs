//! Where a daemon is, and how to reach it: the socket of this machine, or the one of another over ssh.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use kli_protocol::api::ClientInfo;
use tokio::net::UnixStream;
use tokio::process::Command;

use crate::error::ConnectError;
use crate::socket::socket_path;
use crate::start;
use crate::wire::{LineWire, Wire};

/// How to reach a daemon. Cheap to clone; every connection of a [`Client`](crate::Client) is made by it.
#[derive(Clone, Debug)]
pub struct Connector {
    target: Target,
    pub(crate) info: ClientInfo,
    pub(crate) any_protocol: bool,
}

#[derive(Clone, Debug)]
enum Target {
    Socket { path: PathBuf, start: Start },
    Ssh { host: String, kli: String },
}

#[derive(Clone, Debug)]
enum Start {
    Never,
    IfNeeded { program: Option<PathBuf> },
}

impl Connector {
    /// The daemon of this machine, at `socket` or where [`socket_path`] says; it is started if none runs.
    pub fn local(socket: Option<PathBuf>) -> Result<Connector, ConnectError> {
        let target = Target::Socket { path: socket_path(socket)?, start: Start::IfNeeded { program: None } };
        Ok(Connector::new(target))
    }

    /// The daemon of another machine, through `ssh HOST kli bridge`. `kli` is the program's name or path there.
    pub fn remote(host: &str, kli: &str) -> Result<Connector, ConnectError> {
        // A leading hyphen would be an option of ssh.
        if host.is_empty() || host.starts_with('-') || host.contains(char::is_whitespace) {
            return Err(ConnectError::BadHost { host: host.to_owned() });
        }
        Ok(Connector::new(Target::Ssh { host: host.to_owned(), kli: kli.to_owned() }))
    }

    fn new(target: Target) -> Connector {
        let info = ClientInfo { name: "kli-client".into(), version: env!("CARGO_PKG_VERSION").into() };
        Connector { target, info, any_protocol: false }
    }

    /// Fails instead of starting a daemon.
    pub fn without_starting(mut self) -> Connector {
        if let Target::Socket { start, .. } = &mut self.target {
            *start = Start::Never;
        }
        self
    }

    /// Starts this program where a daemon is needed.
    pub fn starting(mut self, daemon: PathBuf) -> Connector {
        if let Target::Socket { start, .. } = &mut self.target {
            *start = Start::IfNeeded { program: Some(daemon) };
        }
        self
    }

    /// What other clients see beside the decisions made here.
    pub fn named(mut self, name: &str, version: &str) -> Connector {
        self.info = ClientInfo { name: name.into(), version: version.into() };
        self
    }

    /// Talks to daemons of any protocol version, for what has not changed since the first: `ping`, `shutdown`.
    pub fn any_protocol(mut self) -> Connector {
        self.any_protocol = true;
        self
    }

    /// The socket, if the daemon is on this machine.
    pub fn socket(&self) -> Option<&Path> {
        match &self.target {
            Target::Socket { path, .. } => Some(path),
            Target::Ssh { .. } => None,
        }
    }

    /// A bare connection to the daemon of this machine, for a program that passes bytes on.
    pub async fn socket_stream(&self) -> Result<UnixStream, ConnectError> {
        match &self.target {
            Target::Socket { path, start: Start::Never } => start::connect(path).await,
            Target::Socket { path, start: Start::IfNeeded { program } } => {
                start::connect_or_start(path, program.as_deref()).await
            }
            Target::Ssh { host, .. } => Err(ConnectError::BadHost { host: host.clone() }),
        }
    }

    pub(crate) async fn wire(&self) -> Result<LineWire, ConnectError> {
        match &self.target {
            Target::Socket { .. } => Ok(LineWire::new(Wire::socket(self.socket_stream().await?))),
            Target::Ssh { host, kli } => ssh(host, kli).map(LineWire::new),
        }
    }

    /// What to add where a connection ended before its first message.
    pub(crate) fn closed_hint(&self) -> String {
        match &self.target {
            Target::Socket { .. } => String::new(),
            Target::Ssh { host, kli } => format!(" (what `ssh {host} {kli} bridge` said, if anything, is above)"),
        }
    }
}

fn ssh(host: &str, kli: &str) -> Result<Wire, ConnectError> {
    let mut command = Command::new("ssh");
    // A dead network ends the connection within a minute instead of never.
    command.args(["-T", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3", "--", host, kli, "bridge"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
    // Ctrl-C at the terminal is for us to handle: it aborts a run, and the connection has to live for that.
    command.process_group(0);
    let mut child = command.spawn().map_err(|source| ConnectError::Spawn { program: "ssh".into(), source })?;
    match (child.stdin.take(), child.stdout.take()) {
        (Some(stdin), Some(stdout)) => {
            Ok(Wire { reader: Box::new(stdout), writer: Box::new(stdin), _child: Some(child) })
        }
        _ => Err(ConnectError::Closed { hint: String::new() }),
    }
}
