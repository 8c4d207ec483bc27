//! The command line.

mod values;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue};
use clap::{Args as ClapArgs, CommandFactory, Parser, Subcommand};

pub use values::{ExportFormat, ImportFormat, Mode, Output, View};

/// A client of kli-daemon: sessions of AI agents that are trees.
///
/// Alone it is an interactive prompt in a new session; `-p TEXT` runs one prompt and prints the answer. The
/// daemon is started where none runs.
///
/// A session is a tree of entries (prompts, answers, results of tools). The leaf is the entry that the next prompt
/// follows; the branch is the way from the root to the leaf, and all that the model is sent. Where a command takes a
/// SESSION and none is given, it is the one last used in this directory.
#[derive(Debug, Parser)]
#[command(name = "kli", version, max_term_width = 100)]
pub struct Args {
    #[command(flatten)]
    pub global: Global,
    #[command(flatten)]
    pub run: Run,
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The heading of what is listed in every command's help.
const EVERYWHERE: &str = "Options of every command";

/// Options that every command takes.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct Global {
    /// The daemon's socket [default: $KLI_SOCKET, or kli/kli.sock in $XDG_RUNTIME_DIR]
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Use the daemon of another machine, over ssh; directories and session files are then those of that machine
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "USER@HOST", conflicts_with = "socket")]
    pub host: Option<String>,
    /// What `kli` is called on that machine
    #[arg(long, global = true, help_heading = EVERYWHERE, value_name = "PATH", default_value = "kli", hide_default_value = true)]
    pub remote_kli: String,
    /// Session id (whole, or its first or last characters), name, or a session file
    #[arg(short, long, global = true, help_heading = EVERYWHERE, value_name = "SESSION")]
    pub session: Option<String>,
    /// The directory that the agent works in [default: this one]
    #[arg(short = 'C', long, global = true, help_heading = EVERYWHERE, value_name = "DIR")]
    pub work_dir: Option<PathBuf>,
    /// Print JSON, for scripts
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    pub json: bool,
}

/// What a run, or a session to be made, is given.
#[derive(Debug, Default, ClapArgs)]
pub struct Run {
    /// Run one prompt, print the answer, leave; standard input is added to the text
    #[arg(short, long, value_name = "TEXT", num_args = 0..=1, default_missing_value = "")]
    pub print: Option<String>,
    /// What -p prints: the answer; one JSON object; or every event as a line of JSON, then that object
    #[arg(long, value_enum, default_value = "text", requires = "print")]
    pub output: Output,
    /// Go on in the session last used in this directory
    #[arg(short = 'c', long = "continue", conflicts_with = "session")]
    pub go_on: bool,
    #[command(flatten)]
    pub new: NewSession,
}

#[derive(Clone, Debug, Default, ClapArgs)]
pub struct NewSession {
    /// The model, as provider/model
    #[arg(short, long, value_name = "PROVIDER/MODEL")]
    pub model: Option<String>,
    /// Which tool calls need a person: those that change something, none, or (plan) none may change anything
    #[arg(long, value_enum)]
    pub mode: Option<Mode>,
    /// A name for the session
    #[arg(short, long)]
    pub name: Option<String>,
    /// MCP servers whose tools the session has, as .mcp.json names them; the daemon starts them
    #[arg(long, value_name = "FILE")]
    pub mcp_config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a session and print its id
    New(NewSession),
    /// List the sessions of this directory
    Ls {
        /// Of all directories
        #[arg(short, long)]
        all: bool,
        /// Draw which session forked from which
        #[arg(short, long)]
        forest: bool,
        /// Archived sessions instead
        #[arg(long)]
        archived: bool,
        /// At most this many
        #[arg(short = 'n', long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "forest")]
        limit: u64,
    },
    /// Draw the tree of a session
    Tree {
        /// Its id (or the beginning or end of it), name or file [default: the one last used in this directory]
        #[arg(value_name = "SESSION")]
        session_id: Option<String>,
        /// Which entries to show
        #[arg(long, value_enum, default_value = "all")]
        view: View,
    },
    /// Show the state of a session, or one of its entries
    Show {
        /// Its id (or the beginning or end of it), name or file [default: the one last used in this directory]
        #[arg(value_name = "SESSION")]
        session_id: Option<String>,
        /// The entry to show
        #[arg(short, long)]
        entry: Option<String>,
    },
    /// Print the conversation from the root to the leaf
    Log {
        /// Its id (or the beginning or end of it), name or file [default: the one last used in this directory]
        #[arg(value_name = "SESSION")]
        session_id: Option<String>,
        /// Only the last N entries
        #[arg(short = 'n', long)]
        limit: Option<u64>,
        /// Stay and print what is added
        #[arg(short, long)]
        follow: bool,
    },
    /// Move the leaf to an entry; if that is a prompt, to before it, and print its text to be edited
    Goto {
        /// An entry's id or label, or `root`
        entry: String,
        /// Leave a summary of what happened on the branch that is left
        #[arg(long)]
        summarize: bool,
        /// What the summary should dwell on
        #[arg(long, requires = "summarize")]
        instructions: Option<String>,
        /// Onto a prompt itself instead of before it
        #[arg(long)]
        at: bool,
    },
    /// Make a session that ends at an entry (before it, if it is a prompt)
    Fork {
        /// An entry's id or label
        entry: String,
        /// At the entry itself, even if it is a prompt
        #[arg(long, conflicts_with = "before")]
        at: bool,
        /// Before the entry
        #[arg(long)]
        before: bool,
        /// A name for the new session
        #[arg(short, long)]
        name: Option<String>,
    },
    /// Make a session with the same branch
    Clone {
        /// Its id (or the beginning or end of it), name or file [default: the one last used in this directory]
        #[arg(value_name = "SESSION")]
        session_id: Option<String>,
        /// A name for the new session
        #[arg(short, long)]
        name: Option<String>,
    },
    /// Make a session that ends before a prompt of the branch
    Rewind {
        /// The prompt's id or label [default: the newest]
        entry: Option<String>,
        /// A name for the new session
        #[arg(short, long)]
        name: Option<String>,
    },
    /// Give an entry a label
    Label {
        /// An entry's id, its present label, or `leaf`
        entry: String,
        /// The label; none takes it away
        label: Option<String>,
    },
    /// Name a session
    Name {
        /// An empty one takes the name away
        name: String,
    },
    /// Go on after an error, an abort or a crash, without a new prompt
    Continue {
        /// Its id (or the beginning or end of it), name or file [default: the one last used in this directory]
        #[arg(value_name = "SESSION")]
        session_id: Option<String>,
        /// What to print: the answer; one JSON object; or every event as a line of JSON, then that object
        #[arg(long, value_enum, default_value = "text")]
        output: Output,
    },
    /// End what goes on in a session
    Abort {
        /// Its id (or the beginning or end of it), name or file [default: the one last used in this directory]
        #[arg(value_name = "SESSION")]
        session_id: Option<String>,
    },
    /// Say something to a run that goes on
    Steer {
        /// What to say; the model reads it before its next turn
        text: String,
        /// When the run would end, instead of at its next turn
        #[arg(long)]
        follow_up: bool,
    },
    /// Find text in the sessions of this directory, or of all
    Search {
        /// Literal text; in lower case it fits any case
        query: String,
        /// In all directories
        #[arg(short, long)]
        all: bool,
        /// At most this many
        #[arg(short = 'n', long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
        limit: u64,
    },
    /// List the models that can be used
    Models {
        /// And those that cannot
        #[arg(short, long)]
        all: bool,
    },
    /// Write a session for another program or a person
    Export {
        /// Its id (or the beginning or end of it), name or file [default: the one last used in this directory]
        #[arg(value_name = "SESSION")]
        session_id: Option<String>,
        /// jsonl: all of the tree, as kli keeps it; pi: the branch, for pi; markdown and html: the branch, to be read
        #[arg(short, long, value_enum, default_value = "jsonl")]
        format: ExportFormat,
        /// The file to write, which must not exist [default: standard output]
        #[arg(short, long, value_name = "FILE")]
        output_file: Option<PathBuf>,
    },
    /// Take in a session of pi, Kimi CLI, Codex, Claude Code or another kli
    Import {
        /// The session's file, or Kimi CLI's directory of it. The daemon reads it: with --host it lies on that machine
        /// (copy it there first), and is given from its root
        #[arg(value_name = "PATH")]
        file: PathBuf,
        /// Whose session it is; auto looks into the file
        #[arg(short, long, value_enum, default_value = "auto")]
        format: ImportFormat,
        /// A name for the new session
        #[arg(short, long)]
        name: Option<String>,
    },
    /// Call a method of the daemon and print its result; `subscribe` prints events until interrupted
    Rpc {
        /// Such as getStatus; `rpc.discover` describes them all
        method: String,
        /// The parameters, as a JSON object or array [default: standard input, if piped]; `-`: standard input
        params: Option<String>,
    },
    /// Start, stop and ask after the daemon
    #[command(subcommand)]
    Daemon(Daemon),
    /// Join standard input and output to the daemon's socket (what `--host` runs on the other machine)
    Bridge,
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write those of all commands into a directory
    Man {
        /// Such as ~/.local/share/man/man1; it is made if need be [default: print the page of `kli` itself]
        dir: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub enum Daemon {
    /// Start the daemon, if it does not run
    Start,
    /// Stop the daemon
    Stop {
        /// Even if a run goes on or a session lives only in memory
        #[arg(long)]
        force: bool,
        /// Once nothing runs any more
        #[arg(long, conflicts_with = "force")]
        when_idle: bool,
    },
    /// Tell whether the daemon runs, and how it is
    Status,
    /// Print the daemon's log
    Logs {
        /// Stay and print what is added
        #[arg(short, long)]
        follow: bool,
        /// Only the last N lines
        #[arg(short = 'n', long, default_value_t = 200)]
        lines: usize,
    },
}

/// Reads the command line.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Args, clap::Error> {
    let args = bind_prompt(args.into_iter().collect());
    let parsed = Args::try_parse_from(&args)
        .or_else(|e| bind_later_prompt(args.clone(), &e).and_then(|args| Args::try_parse_from(args).ok()).ok_or(e))
        .map_err(|e| tell_of_print(&args, e))?;
    if parsed.command.is_some() && parsed.run.print.is_some() {
        let text = "-p is a command of its own; it takes no subcommand (a prompt of several words needs quotes)";
        return Err(Args::command().error(clap::error::ErrorKind::ArgumentConflict, text));
    }
    let NewSession { model, mode, name, mcp_config } = &parsed.run.new;
    let is_new_told = model.is_some() || mode.is_some() || name.is_some() || mcp_config.is_some();
    if parsed.command.is_some() && (parsed.run.go_on || is_new_told) {
        let text = "--continue, --model, --mode, --name and --mcp-config in front of a command are of no use; where it \
                    has such an option, that comes behind the command";
        return Err(Args::command().error(clap::error::ErrorKind::ArgumentConflict, text));
    }
    Ok(parsed)
}

/// `kli "the prompt"`: what looks like a command may be meant for the model.
fn tell_of_print(args: &[OsString], mut error: clap::Error) -> clap::Error {
    let is_first = |text: &str| args.get(1).is_some_and(|first| first == text);
    let (mut is_unknown, mut is_similar) = (false, false);
    for (kind, value) in error.context() {
        is_unknown |=
            matches!((kind, value), (ContextKind::InvalidSubcommand, ContextValue::String(text)) if is_first(text));
        is_similar |= kind == ContextKind::SuggestedSubcommand;
    }
    if is_unknown && !is_similar {
        let tip = "to ask the model: kli -p \"TEXT\", or type it at the prompt that `kli` alone gives";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// `-p --continue "the prompt"`: options may stand between `-p` and its prompt, which then looks like a command.
fn bind_later_prompt(mut args: Vec<OsString>, error: &clap::Error) -> Option<Vec<OsString>> {
    let print = args.iter().position(|arg| arg == "-p" || arg == "--print")?;
    let (ContextKind::InvalidSubcommand | ContextKind::InvalidArg, ContextValue::String(prompt)) =
        error.context().find(|(kind, _)| matches!(kind, ContextKind::InvalidSubcommand | ContextKind::InvalidArg))?
    else {
        return None;
    };
    // What `-p` has taken already is its prompt.
    if !args.get(print + 1)?.to_str()?.starts_with('-') {
        return None;
    }
    // A slip in an option's name is no prompt.
    if prompt.starts_with('-') && !prompt.contains(char::is_whitespace) {
        return None;
    }
    let at = args.iter().skip(print).position(|arg| arg == prompt.as_str())? + print;
    args.remove(at);
    let bound = args.get_mut(print)?;
    *bound = OsString::from(format!("--print={prompt}"));
    Some(args)
}

/// Ties a prompt that starts with a hyphen (`-p "- one thing"`) to its `-p`, unless it is one of our options.
fn bind_prompt(args: Vec<OsString>) -> Vec<OsString> {
    let known = |text: &str| {
        let command = Args::command();
        command.get_arguments().any(|arg| {
            let long = |name: &str| text == format!("--{name}") || text.starts_with(&format!("--{name}="));
            arg.get_long().is_some_and(long) || arg.get_short().is_some_and(|c| text == format!("-{c}"))
        }) || ["--help", "-h", "--version", "-V", "--"].contains(&text)
    };
    let mut bound: Vec<OsString> = Vec::with_capacity(args.len());
    let mut args = args.into_iter().peekable();
    while let Some(arg) = args.next() {
        let value = match args.peek().and_then(|next| next.to_str()) {
            Some(next) if (arg == "-p" || arg == "--print") && next.starts_with('-') && !known(next) => args.next(),
            _ => None,
        };
        match value {
            Some(value) => {
                let mut joined = OsString::from("--print=");
                joined.push(value);
                bound.push(joined);
            }
            None if arg == "--" => {
                bound.push(arg);
                bound.extend(args);
                return bound;
            }
            None => bound.push(arg),
        }
    }
    bound
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &[&str]) -> Result<Args, clap::Error> {
        parse(std::iter::once("kli").chain(line.iter().copied()).map(OsString::from))
    }

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
    }

    /// No command, argument or option is left without a word about it.
    #[test]
    fn everything_has_help() {
        let mut commands = vec![Args::command()];
        while let Some(command) = commands.pop() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for arg in command.get_arguments() {
                assert!(arg.get_help().is_some_and(|help| !help.to_string().is_empty()), "{command} {arg}");
            }
            commands.extend(command.get_subcommands().cloned());
        }
    }

    #[test]
    fn prompts() {
        for (line, text, output) in [
            (&["-p", "hi"][..], Some("hi"), Output::Text),
            (&["-p"], Some(""), Output::Text),
            (&["-p", "--output", "json"], Some(""), Output::Json),
            (&["--output", "stream-json", "-p", "hi"], Some("hi"), Output::StreamJson),
            (&["-p", "- a list\n- of things"], Some("- a list\n- of things"), Output::Text),
            (&["-p", "--frobnicate is what?"], Some("--frobnicate is what?"), Output::Text),
            (&["-p", "hi", "--continue"], Some("hi"), Output::Text),
            (&["-p", "hi", "-c"], Some("hi"), Output::Text),
            (&["-p", "--continue", "say hi"], Some("say hi"), Output::Text),
            (&["-p", "--output", "json", "say hi"], Some("say hi"), Output::Json),
            (&["-p", "--output", "json", "hi", "--continue"], Some("hi"), Output::Json),
            (&["--print=-x"], Some("-x"), Output::Text),
            (&[], None, Output::Text),
        ] {
            let args = read(line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
            assert_eq!((args.run.print.as_deref(), args.run.output), (text, output), "{line:?}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_2() {
        for line in [
            &["-p", "hi", "there"][..],
            &["-p", "x", "ls"],
            &["-p", "--continue", "one", "two"],
            &["-p", "--continue", "--frobnicate"],
            &["--output", "json"],
            &["-p", "x", "--continue", "--session", "s"],
            &["-p", "x", "--mode", "yolo"],
            &["frobnicate"],
            &["--host", "h", "--socket", "/s", "ls"],
            &["rpc"],
            &["--continue", "ls"],
            &["--name", "x", "new"],
            &["--mode", "auto", "continue"],
            &["ls", "-n", "0"],
            &["ls", "--forest", "-n", "3"],
            &["search", "x", "-n", "0"],
        ] {
            let e = read(line).map(|a| format!("{a:?}")).expect_err(&format!("{line:?}"));
            assert_eq!(e.exit_code(), 2, "{line:?}");
        }
    }

    #[test]
    fn a_prompt_without_its_option_is_told_of_it() {
        for (line, told) in [
            (&["fix the bug"][..], true),
            (&["frobnicate", "--json"], true),
            (&["lst"], false),
            (&["daemon", "frobnicate"], false),
            (&["goto"], false),
        ] {
            let text = read(line).expect_err(&format!("{line:?}")).to_string();
            assert_eq!(text.contains("kli -p"), told, "{line:?}: {text}");
        }
    }

    #[test]
    fn global_options_may_stand_anywhere() {
        for line in [&["--json", "-s", "x", "goto", "y"][..], &["goto", "y", "-s", "x", "--json"]] {
            let args = read(line).unwrap();
            assert_eq!((args.global.session.as_deref(), args.global.json), (Some("x"), true), "{line:?}");
        }
    }
}
