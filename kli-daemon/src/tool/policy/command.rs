//! Commands as far as they can be judged by their words. A command is simple when it runs one program with the
//! words that it shows: no operators, no redirections, no expansions that put in other words or run something.

use std::path::{Path, PathBuf};

use super::{is_sensitive, sensitive};
use crate::tool::path;

#[derive(Debug)]
pub(super) struct Command {
    /// If it is simple.
    words: Option<Vec<String>>,
    /// The commands that it may run, as far as can be seen.
    parts: Vec<Vec<String>>,
    work_dir: PathBuf,
}

/// These run what follows them; for a deny rule that is the command.
const WRAPPERS: &[&str] = &[
    "sudo", "doas", "env", "command", "builtin", "exec", "nohup", "setsid", "time", "nice", "ionice", "timeout",
    "xargs",
];
/// Words of the shell's grammar before a command.
const KEYWORDS: &[&str] = &["if", "then", "else", "elif", "while", "until", "do", "!", "{", "(", "eval", "coproc"];
/// Their second word says what they do.
const WITH_SUBCOMMAND: &[&str] = &[
    "git",
    "cargo",
    "npm",
    "pnpm",
    "yarn",
    "bun",
    "go",
    "docker",
    "podman",
    "kubectl",
    "helm",
    "gh",
    "make",
    "just",
    "task",
    "dotnet",
    "mix",
    "gradle",
    "mvn",
    "bundle",
    "rails",
    "poetry",
    "uv",
    "pip",
    "terraform",
    "systemctl",
    "apt",
    "apt-get",
    "brew",
    "rustup",
    "jj",
    "hg",
    "svn",
    "composer",
    "flutter",
    "dart",
    "swift",
    "zig",
    "nix",
    "deno",
];
/// They run anything, or undo work for good: never allowed by their name alone.
const NEVER_BY_NAME: &[&str] = &[
    "sh",
    "bash",
    "zsh",
    "dash",
    "fish",
    "ksh",
    "python",
    "python3",
    "node",
    "perl",
    "ruby",
    "php",
    "lua",
    "ssh",
    "awk",
    "gawk",
    "sed",
    "find",
    "tar",
    "npx",
    "bunx",
    "uvx",
    "pipx",
    "rm",
    "mv",
    "cp",
    "ln",
    "dd",
    "chmod",
    "chown",
    "kill",
    "pkill",
    "killall",
    "curl",
    "wget",
    "nc",
    "scp",
    "rsync",
    "eval",
    "source",
    ".",
    "tee",
    "truncate",
    "shred",
    "mkfs",
    "install",
    "parallel",
    "watch",
    "strace",
    "gdb",
    "vim",
    "vi",
    "ed",
    "ex",
    "emacs",
    "su",
    "chroot",
    "unshare",
    "nsenter",
    "crontab",
    "at",
    "shutdown",
    "reboot",
    "script",
    "expect",
    "osascript",
    "open",
    "xdg-open",
    "trap",
    "alias",
    "export",
    "cd",
];

/// Of a very long command, so many words are looked up in the file system.
const MOST_LINKS: usize = 256;

impl Command {
    pub(super) fn new(text: &str, work_dir: &Path) -> Command {
        Command { words: simple_words(text).ok(), parts: parts(text), work_dir: work_dir.to_owned() }
    }

    /// A simple command that begins with these words.
    pub(super) fn begins_with(&self, wanted: &[String]) -> bool {
        self.words.as_ref().is_some_and(|words| words.starts_with(wanted))
    }

    /// Whether any part may begin with these words, also behind `sudo` and its like, and with the program's path.
    pub(super) fn may_run(&self, wanted: &[String]) -> bool {
        self.parts.iter().any(|words| {
            // Still before the command itself; behind something that runs what follows it.
            let (mut leading, mut wrapped) = (true, false);
            for (at, word) in words.iter().enumerate() {
                if !leading && !wrapped {
                    break;
                }
                if same_beginning(words.get(at..).unwrap_or_default(), wanted) {
                    return true;
                }
                let name = base_name(word);
                wrapped |= WRAPPERS.contains(&name);
                leading &= wrapped || KEYWORDS.contains(&name) || is_assignment(word);
            }
            false
        })
    }

    /// A word that names a sensitive file.
    pub(super) fn sensitive_word(&self) -> Option<&str> {
        let words = self.parts.iter().flatten().map(String::as_str).enumerate();
        words.map(|(at, word)| (at < MOST_LINKS, word)).find_map(|(links, word)| {
            // Also in `--file=.env` and `@.env` and `a:.env`.
            let mut parts = word.split(['=', ':', '@', ',']).chain([word]).filter(|part| !part.is_empty());
            let found = parts.any(|part| {
                let named = path::resolve(part, &self.work_dir);
                is_sensitive(&named) || sensitive::is_glob_of_sensitive(part) || links && is_sensitive_link(&named)
            });
            found.then_some(word)
        })
    }

    /// The rule that means commands like this one, where one can be given.
    pub(super) fn rule(&self, tool: &str) -> Option<String> {
        let words = self.words.as_ref()?;
        let program = words.first()?;
        let plain = |word: &String| {
            word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '+'))
                && !word.starts_with('-')
        };
        if !plain(program) || NEVER_BY_NAME.contains(&program.as_str()) || WRAPPERS.contains(&program.as_str()) {
            return None;
        }
        let runner = |word: &String| matches!(word.as_str(), "run" | "exec" | "compose" | "script");
        let len = if !WITH_SUBCOMMAND.contains(&program.as_str()) {
            1
        } else if words.get(1).is_some_and(runner) {
            3
        } else {
            2
        };
        let prefix = words.get(..len)?;
        prefix.iter().all(plain).then(|| format!("{tool}({})", prefix.join(" ")))
    }
}

/// The words of a simple command, or why it is none.
pub(super) fn simple_words(text: &str) -> Result<Vec<String>, &'static str> {
    let mut quote = None;
    let mut chars = text.trim().chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some('\''), '\'') | (Some('"'), '"') => quote = None,
            (Some('\''), _) => {}
            (None | Some('"'), '\\') => match chars.next() {
                Some('\n' | '\r') | None => return Err("it has a line end"),
                _ => {}
            },
            (_, '$' | '`') => return Err("it has an expansion ($ or `)"),
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, ';' | '&' | '|' | '(' | ')') => return Err("it has an operator of the shell"),
            (None, '<' | '>') => return Err("it has a redirection"),
            (None, '\n' | '\r') => return Err("it has a line end"),
            (None, _) => {}
        }
    }
    let words = shell_words::split(text).map_err(|_| "a quote is not closed")?;
    match words.first() {
        None => Err("it is empty"),
        Some(first) if is_assignment(first) => Err("it sets a variable"),
        Some(_) => Ok(words),
    }
}

/// Cuts at everything that may begin another command, inside of quotes too where the shell looks into them, and
/// inside of words that are commands themselves (`sh -c '…'`). Finds rather too much than too little.
fn parts(text: &str) -> Vec<Vec<String>> {
    let mut parts = Vec::new();
    let mut todo = vec![(text.to_owned(), 0)];
    while let Some((text, depth)) = todo.pop() {
        for piece in pieces(&text) {
            let words = shell_words::split(&piece).unwrap_or_else(|_| {
                piece.split_whitespace().map(|word| word.trim_matches(['"', '\'']).to_owned()).collect()
            });
            // A text with spaces may be a script; enough levels for what people write.
            if depth < 4 {
                todo.extend(
                    words
                        .iter()
                        .filter(|word| word.contains([' ', ';', '|', '&', '`', '$', '\n']))
                        .filter(|word| **word != text)
                        .map(|word| (word.clone(), depth + 1)),
                );
            }
            if !words.is_empty() {
                parts.push(words);
            }
        }
    }
    parts
}

/// The text between operators, and what is in `$(…)` and backquotes.
fn pieces(text: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut quote = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let substitution = quote != Some('\'') && (c == '`' || c == '$' && chars.peek() == Some(&'('));
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some('"') | None, '\\') => {
                if let Some(piece) = pieces.last_mut() {
                    piece.push(c);
                    piece.extend(chars.next());
                }
                continue;
            }
            _ if substitution => {
                if c == '$' {
                    chars.next();
                }
                // The rest of a quoted text with a command in it is looked at as plain text.
                if let (Some(open), Some(piece)) = (quote.take(), pieces.last_mut()) {
                    piece.push(open);
                }
                pieces.push(String::new());
                continue;
            }
            (None, '\'' | '"') => quote = Some(c),
            (None, ';' | '&' | '|' | '(' | ')' | '\n' | '\r' | '<' | '>') => {
                pieces.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(piece) = pieces.last_mut() {
            piece.push(c);
        }
    }
    pieces
}

fn same_beginning(words: &[String], wanted: &[String]) -> bool {
    let (Some(program), Some(first)) = (words.first(), wanted.first()) else { return false };
    let same = program == first || base_name(program) == first.as_str();
    let (words, wanted) = (words.get(1..).unwrap_or_default(), wanted.get(1..).unwrap_or_default());
    // `git -C x push` is `git push`: options, and one word after each, may come between.
    same && (words.starts_with(wanted)
        || wanted.first().is_some_and(|next| {
            let options = words.iter().take_while(|word| *word != next).collect::<Vec<_>>();
            let only_options = options.iter().enumerate().all(|(at, word)| {
                word.starts_with('-') || at > 0 && options.get(at - 1).is_some_and(|before| before.starts_with('-'))
            });
            only_options && words.get(options.len()..).is_some_and(|rest| rest.starts_with(wanted))
        }))
}

fn base_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        let name = name.strip_suffix('+').unwrap_or(name);
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

fn is_sensitive_link(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink())
        && std::fs::canonicalize(path).is_ok_and(|real| is_sensitive(&real))
}
