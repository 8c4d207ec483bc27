//! Runs a command of a model or of a person in a shell: alone in its session, without a terminal, an editor, a
//! pager or an input to wait for, and without anything left of it when it is cancelled.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use std::os::unix::process::ExitStatusExt as _;

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::jobs::JobError;
use super::output::{Capture, Output};
use super::process::{MARKER, Tree};
use super::sandbox::SandboxError;
use super::{ToolContext, path, sandbox};

/// Nobody sits at a terminal: what would ask, edit or page fails or goes through at once. These count more than
/// the session's own variables, which usually come from a person's shell.
const UNATTENDED: &[(&str, &str)] = &[
    ("EDITOR", "false"),
    ("VISUAL", "false"),
    ("GIT_EDITOR", "false"),
    ("GIT_SEQUENCE_EDITOR", "false"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_ASKPASS", "false"),
    ("SSH_ASKPASS", "false"),
    ("SSH_ASKPASS_REQUIRE", "never"),
    ("SUDO_ASKPASS", "false"),
    ("GH_PROMPT_DISABLED", "1"),
    ("DEBIAN_FRONTEND", "noninteractive"),
    ("PAGER", "cat"),
    ("GIT_PAGER", "cat"),
    ("MANPAGER", "cat"),
    ("SYSTEMD_PAGER", "cat"),
    ("TERM", "dumb"),
    ("VIMINIT", VIM),
];

/// Vim and Neovim with no input read what they print to, and wait for ever: without input they leave. One that has
/// something to read, or was told on its command line what to do, goes on. Their own first files, which this variable
/// stands in for, are read as before.
const VIM: &str = r#"if resolve("/proc/self/fd/0") ==# "/dev/null" | call timer_start(2000, {-> execute("cquit!")}) | endif | if has("nvim") | runtime init.vim init.lua | elseif filereadable(expand("~/.vimrc")) | source ~/.vimrc | elseif filereadable(expand("~/.vim/vimrc")) | source ~/.vim/vimrc | endif"#;

/// How long output is waited for that may still be on its way when the shell has ended.
const AFTER_EXIT: Duration = Duration::from_millis(200);
/// More than a pipe holds; a child that goes on printing is not waited for.
const LARGEST_PIPE: usize = 1024 * 1024;
/// How long a command may tidy up when it is cancelled.
const GRACE: Duration = Duration::from_millis(200);
/// How long a killed process may take to go; one that hangs in the kernel is left.
const LAST_WAIT: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("{0}")]
    NoWorkDir(String),
    #[error("The command cannot be started: it contains a NUL character.")]
    Nul,
    #[error("The command cannot be started: it is too long. Write it to a file and run that.")]
    TooLong,
    #[error("The command cannot be started: {0}.")]
    Session(#[from] JobError),
    #[error("The command cannot be started: {0}.")]
    Sandbox(#[from] SandboxError),
    #[error("The command cannot be started: {0}")]
    Spawn(std::io::Error),
}

/// How a command went.
#[derive(Clone, Debug, Default)]
pub struct CommandOutcome {
    /// Its output, stdout and stderr as they came, as plain text; of one beyond [`crate::text::Limits::OUTPUT`] the
    /// beginning and the end.
    pub output: String,
    /// `128 + n` when a signal ended it; none when it was cancelled or timed out.
    pub exit_code: Option<i32>,
    pub cancelled: bool,
    pub timed_out: bool,
    /// `output` is not all.
    pub truncated: bool,
    pub total_lines: u64,
    /// All of a truncated output, until the session is closed.
    pub full_output_path: Option<PathBuf>,
    /// That file has only the beginning: the output was larger than any file is let grow.
    pub full_output_incomplete: bool,
    /// Bytes that are no UTF-8 are U+FFFD.
    pub replaced: bool,
    /// Children of it still hold its output, and go on as this background job.
    pub job_id: Option<String>,
}

/// Runs a command to its end. Cancelling or dropping this ends it and all its children.
///
/// It ends with the shell: children in the background that hold the output do not delay it, but become a job.
pub async fn run_command(
    command: &str,
    timeout: Option<Duration>,
    context: &ToolContext,
) -> Result<CommandOutcome, CommandError> {
    let Process { child, mut output, tree } = spawn(command, context)?;
    let (mut child, mut tree) = (Some(child), Some(tree));
    let mut capture = Capture::new(context.progress.clone(), context.jobs.clone());
    let mut buffer = vec![0; 32 * 1024];
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut open = true;
    let end = loop {
        tokio::select! {
            biased;
            () = context.cancel.cancelled() => break End::Cancelled,
            () = at(deadline) => break End::TimedOut,
            status = wait(&mut child) => break End::Exited(status),
            read = output.read(&mut buffer), if open => match read {
                Ok(n) if n > 0 => capture.push(buffer.get(..n).unwrap_or_default()).await,
                _ => open = false,
            },
        }
    };
    let mut outcome = CommandOutcome::default();
    let exited = match end {
        End::Exited(status) => status,
        End::Cancelled | End::TimedOut => {
            outcome.cancelled = matches!(end, End::Cancelled);
            outcome.timed_out = !outcome.cancelled;
            if let Some(tree) = tree.take() {
                self::end(&mut child, tree).await;
            }
            None
        }
    };
    open = open && drain(&output, &mut capture, &mut buffer).await;
    outcome.exit_code = exited.map(exit_code);
    if let Some(mut tree) = tree {
        tree.forget_root();
        match exited {
            Some(status) if open => outcome.job_id = context.jobs.adopt(command, status, output, tree).ok(),
            _ => tree.disarm(),
        }
    }
    let Output { text, truncated, total_lines, path, path_incomplete, replaced } = capture.finish().await;
    Ok(CommandOutcome {
        output: text,
        truncated,
        total_lines,
        full_output_path: path,
        full_output_incomplete: path_incomplete,
        replaced,
        ..outcome
    })
}

/// Takes what was printed before the end and is in the pipe already, then waits a moment for the pipe to be closed.
/// Returns whether it is still open.
async fn drain(output: &pipe::Receiver, capture: &mut Capture, buffer: &mut [u8]) -> bool {
    let mut rest = LARGEST_PIPE;
    let mut until = None;
    while rest > 0 {
        match output.try_read(buffer) {
            Ok(0) => return false,
            Ok(n) => {
                capture.push(buffer.get(..n).unwrap_or_default()).await;
                rest = rest.saturating_sub(n);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let until = *until.get_or_insert_with(|| Instant::now() + AFTER_EXIT);
                if tokio::time::timeout_at(until, output.readable()).await.is_err() {
                    return true;
                }
            }
            Err(_) => return false,
        }
    }
    true
}

enum End {
    Exited(Option<ExitStatus>),
    Cancelled,
    TimedOut,
}

/// A shell that runs.
#[derive(Debug)]
pub(crate) struct Process {
    pub child: Child,
    pub output: pipe::Receiver,
    pub tree: Tree,
}

pub(crate) fn spawn(command: &str, context: &ToolContext) -> Result<Process, CommandError> {
    if !context.work_dir.is_dir() {
        return Err(CommandError::NoWorkDir(path::work_dir_gone(&context.work_dir)));
    }
    if command.contains('\0') {
        return Err(CommandError::Nul);
    }
    let call = context.jobs.next_call()?;
    // One pipe for both, so that they come in the order in which they were written.
    let (reader, writer) = std::io::pipe().map_err(CommandError::Spawn)?;
    let output = pipe::Receiver::from_owned_fd(reader.into()).map_err(CommandError::Spawn)?;
    let mut shell = Command::new(&*SHELL);
    shell
        .arg("-c")
        .arg(command)
        .current_dir(&context.work_dir)
        .envs(context.env.iter().filter(|(name, value)| is_variable(name, value)))
        .envs(UNATTENDED.iter().copied())
        .env("PWD", &context.work_dir)
        .env(MARKER, &call)
        .stdin(Stdio::null())
        .stdout(writer.try_clone().map_err(CommandError::Spawn)?)
        .stderr(writer);
    // `shell` goes with the closure: it holds the writing ends, and with them open the output would never end.
    let start = move |_: &[&str]| start(shell);
    let child = sandbox::confine(context.sandbox, &context.work_dir, start)??;
    let tree = Tree::new(child.id(), call);
    Ok(Process { child, output, tree })
}

pub(crate) fn start(mut shell: Command) -> Result<Child, CommandError> {
    // A session of its own: no terminal to ask on (opening /dev/tty fails at once), and one group to signal.
    // SAFETY: between fork and exec only async-signal-safe functions may be called; setsid is one, and nothing
    // else is called or allocated here.
    unsafe {
        shell.pre_exec(|| {
            rustix::process::setsid()?;
            Ok(())
        });
    }
    shell.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::ArgumentListTooLong => CommandError::TooLong,
        _ => CommandError::Spawn(error),
    })
}

/// What `Command` would refuse, or the marker, which is not a session's to set.
pub(crate) fn is_variable(name: &str, value: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0') && name != MARKER
}

/// bash where there is one: models write for it.
static SHELL: LazyLock<PathBuf> = LazyLock::new(|| {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).filter(|dir| dir.is_absolute()).map(|dir| dir.join("bash"));
    std::iter::once(PathBuf::from("/bin/bash"))
        .chain(on_path)
        .find(|shell| shell.is_file())
        .unwrap_or_else(|| PathBuf::from("/bin/sh"))
});

/// Ends a command and all its children: first asked, then made to.
pub(crate) async fn end(child: &mut Option<Child>, tree: Tree) -> Option<ExitStatus> {
    let Some(mut child) = child.take() else {
        tree.end(std::future::ready(())).await;
        return None;
    };
    // Only looked at: waiting would free the process id, by which its session is found.
    let gone = async {
        let _ = tokio::time::timeout(GRACE, ended(&child)).await;
    };
    tree.end(gone).await;
    tokio::time::timeout(LAST_WAIT, child.wait()).await.ok().and_then(Result::ok)
}

/// Until the process has ended, without taking its exit status.
async fn ended(child: &Child) {
    let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw) else {
        return;
    };
    loop {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pid(pid), options) {
            Ok(None) => tokio::time::sleep(Duration::from_millis(5)).await,
            _ => return,
        }
    }
}

pub(crate) fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

async fn wait(child: &mut Option<Child>) -> Option<ExitStatus> {
    match child {
        Some(child) => child.wait().await.ok(),
        None => std::future::pending().await,
    }
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
