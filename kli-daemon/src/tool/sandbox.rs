//! What commands may touch, held by the kernel (Linux: Landlock and seccomp) and not by trust.
//!
//! | | off | workspace-write | read-only |
//! |---|---|---|---|
//! | read and run files | yes | yes | yes |
//! | change files | yes | in the work directory, `/tmp`, `/var/tmp`, `/dev/shm` and the daemon's `$TMPDIR` | no |
//! | network, other programs' sockets | yes | no | no |
//! | signals to processes outside, their memory | yes | no | no |
//! | modes, owners, times of files | yes | yes, everywhere | no |
//!
//! What the kernel in use cannot hold, [`Sandbox::gaps`] says; where it cannot hold changes to files at all, nothing
//! is run. Known and left: everything that can be read can be read, and what is written in the work directory
//! (`.git/hooks`, build scripts) may be run by others later. The tools for files do not run here: they touch what
//! their arguments name, which is the policy's business.
//!
//! A restriction holds for the thread that takes it on and for all that it starts. So a thread of its own takes it,
//! starts the command, and ends: no code runs between fork and exec for it, and nothing else of the daemon changes.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sandbox {
    #[default]
    Off,
    /// Changes stay in the work directory.
    WorkspaceWrite,
    /// Nothing is changed.
    ReadOnly,
}

#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("the sandbox must be \"off\", \"workspace-write\" or \"read-only\", not \"{0}\"")]
    Unknown(String),
    #[error(
        "the sandbox \"{0}\" is not possible on this system ({1}), so no command is run; set sandbox = \"off\" to run \
         commands without one"
    )]
    Impossible(Sandbox, String),
}

impl FromStr for Sandbox {
    type Err = SandboxError;

    fn from_str(text: &str) -> Result<Sandbox, SandboxError> {
        match text {
            "off" => Ok(Sandbox::Off),
            "workspace-write" => Ok(Sandbox::WorkspaceWrite),
            "read-only" => Ok(Sandbox::ReadOnly),
            other => Err(SandboxError::Unknown(other.to_owned())),
        }
    }
}

impl fmt::Display for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Sandbox::Off => "off",
            Sandbox::WorkspaceWrite => "workspace-write",
            Sandbox::ReadOnly => "read-only",
        })
    }
}

impl Sandbox {
    /// What of its promise this system does not hold, each a clause for a person; empty when all is held. Tried out,
    /// not guessed.
    pub fn gaps(self) -> Result<Vec<&'static str>, SandboxError> {
        match self {
            Sandbox::Off => Ok(Vec::new()),
            _ => confine(self, Path::new("/nonexistent"), |gaps| gaps.to_vec()),
        }
    }

    /// For a model whose command failed, which may have been because of this.
    pub(crate) fn hint(self) -> Option<&'static str> {
        match self {
            Sandbox::Off => None,
            Sandbox::WorkspaceWrite => Some(
                "Commands run in a sandbox: they cannot change files outside of the work directory and those for \
                 temporary files (/tmp, /var/tmp, /dev/shm, $TMPDIR), and have no network.",
            ),
            Sandbox::ReadOnly => Some("Commands run in a sandbox: they cannot change any file, and have no network."),
        }
    }
}

/// Runs `work`, which starts a command, so that the command is confined. `work` is told of the gaps.
pub(crate) fn confine<T: Send>(
    sandbox: Sandbox,
    work_dir: &Path,
    work: impl FnOnce(&[&'static str]) -> T + Send,
) -> Result<T, SandboxError> {
    if sandbox == Sandbox::Off {
        return Ok(work(&[]));
    }
    let impossible = |why: String| SandboxError::Impossible(sandbox, why);
    // Tokio's process type wants its runtime, which a new thread does not know.
    let runtime = tokio::runtime::Handle::try_current().ok();
    std::thread::scope(|scope| {
        let confined = move || {
            let gaps = restrict(sandbox, work_dir).map_err(impossible)?;
            let _in_runtime = runtime.as_ref().map(|runtime| runtime.enter());
            Ok(work(&gaps))
        };
        let thread = std::thread::Builder::new().name("sandbox".into()).spawn_scoped(scope, confined);
        match thread.map(|thread| thread.join()) {
            Ok(Ok(done)) => done,
            Ok(Err(_)) => Err(impossible("the thread that starts it failed".to_owned())),
            Err(error) => Err(impossible(error.to_string())),
        }
    })
}

/// From here on this thread, and all that it starts, is held. For ever: never on a thread that does anything else.
#[cfg(target_os = "linux")]
fn restrict(sandbox: Sandbox, work_dir: &Path) -> Result<Vec<&'static str>, String> {
    linux::restrict(sandbox, work_dir)
}

#[cfg(not(target_os = "linux"))]
fn restrict(_: Sandbox, _: &Path) -> Result<Vec<&'static str>, String> {
    Err("only Linux has it".to_owned())
}
