//! The daemon's executable: reads the command line, the rest is `kli_daemon::daemon`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use kli_daemon::daemon::{self, Options};
use kli_protocol::error::in_full;

/// Owns every AI-agent session tree and runs the agent loops; clients speak to it over one Unix socket.
#[derive(Debug, Parser)]
#[command(name = "kli-daemon", version)]
struct Flags {
    /// Where to listen [default: $KLI_SOCKET, else $XDG_RUNTIME_DIR/kli/kli.sock, else kli.sock in the state
    /// directory]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Where sessions are kept; without it, and without sessionDir in the configuration, they live in memory
    #[arg(long, value_name = "DIR")]
    session_dir: Option<String>,
    /// The configuration file [default: kli/config.toml in the user's configuration directory]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Log to stderr instead of a file in the state directory
    #[arg(long)]
    foreground: bool,
}

fn main() -> ExitCode {
    give_memory_back();
    let flags = Flags::parse();
    let options = Options {
        socket: flags.socket,
        session_dir: flags.session_dir,
        config: flags.config,
        foreground: flags.foreground,
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&anyhow::Error::new(error)),
    };
    match runtime.block_on(daemon::run(options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// Reading a large session takes arrays of megabytes for a moment. glibc would learn from the first of them to keep
/// such memory, in each thread's own arena; with a fixed threshold it goes back to the system when it is freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn give_memory_back() {
    const LARGE: libc::c_int = 256 * 1024;
    const ARENAS: libc::c_int = 4;
    // SAFETY: sets numbers of the allocator, before there is another thread.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE);
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn give_memory_back() {}

/// What stops a daemon from starting is told to whoever starts it, if they listen.
fn fail(error: &anyhow::Error) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "kli-daemon: {}", in_full(error.as_ref()));
    ExitCode::FAILURE
}
