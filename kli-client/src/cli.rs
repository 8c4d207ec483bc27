//! The `kli` command: reads the command line, connects, does one thing, and says how it went.
//!
//! * `args`: the command line · `context`: which daemon, directory, session and entry are meant
//! * `run`: one prompt (`-p`) · `repl`: the interactive prompt · `commands`, `daemon`, `rpc`, `bridge`: the rest
//! * `tree`, `transcript`, `text`, `out`, `input`: what is shown, and standard input and output

mod args;
mod bridge;
mod commands;
mod context;
mod daemon;
#[cfg(test)]
#[path = "fake.rs"]
mod fake;
mod input;
mod out;
mod repl;
mod rpc;
mod run;
mod text;
mod transcript;
mod tree;

use std::io;
use std::process::ExitCode;

use args::{Args, Command};
use context::Context;
use kli_client::protocol::error::in_full;
use kli_client::{CallError, ErrorKind};

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done,
    Error,
    Usage,
    /// 128 + SIGINT, as a shell would say.
    Aborted,
    /// 128 + SIGTERM.
    Terminated,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Done => 0,
            Exit::Error => 1,
            Exit::Usage => 2,
            Exit::Aborted => 130,
            Exit::Terminated => 143,
        })
    }
}

/// A fault of the command line that only shows when it is carried out.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Runs the command of this process.
pub fn main() -> ExitCode {
    let args = match args::parse(std::env::args_os()) {
        Ok(args) => args,
        Err(e) => {
            let _ = e.print();
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            out::note(&format!("cannot start: {e}"));
            return Exit::Error.into();
        }
    };
    let exit = match runtime.block_on(dispatch(args)) {
        Ok(exit) => exit,
        Err(e) => failed(&e),
    };
    // A thread that still reads standard input is not waited for.
    runtime.shutdown_background();
    exit.into()
}

/// Says what went wrong; a reader of our output that has gone (`| head`) is no fault.
fn failed(error: &anyhow::Error) -> Exit {
    let gone = |e: &(dyn std::error::Error + 'static)| {
        e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    };
    if error.chain().any(gone) {
        return Exit::Done;
    }
    out::note(&match hint(error) {
        Some(hint) => format!("{}; {hint}", in_full(error.as_ref()).trim_end_matches('.')),
        None => in_full(error.as_ref()),
    });
    if error.is::<UsageError>() { Exit::Usage } else { Exit::Error }
}

/// Where to look for what was not found: the daemon does not know by what commands it is asked.
fn hint(error: &anyhow::Error) -> Option<&'static str> {
    match error.downcast_ref::<CallError>()?.api()?.kind()? {
        ErrorKind::SessionNotFound => Some("`kli ls --all` lists the sessions there are"),
        ErrorKind::EntryNotFound => Some("`kli tree` shows the ids and labels of entries"),
        ErrorKind::ModelNotFound => Some("`kli models --all` lists the models there are"),
        _ => None,
    }
}

async fn dispatch(args: Args) -> anyhow::Result<Exit> {
    let Args { global, run, command } = args;
    let command = match command {
        None if run.print.is_some() => return run::print(global, run).await,
        None => return repl::start(global, run).await,
        Some(Command::Completions { shell }) => return commands::completions(shell),
        Some(Command::Man { dir }) => return commands::man(dir.as_deref()),
        Some(Command::Bridge) => return bridge::run(&global).await,
        Some(Command::Daemon(command)) => return daemon::run(&global, command).await,
        Some(Command::Rpc { method, params }) => return rpc::run(&global, &method, params).await,
        Some(command) => command,
    };
    commands::run(&Context::connect(global).await?, command).await
}
