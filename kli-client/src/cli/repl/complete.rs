//! What Tab completes: commands, the prompt templates and skills of the daemon, words after some commands, and
//! `@file` paths.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::slash;

/// So many files of a directory are offered.
const FILES: usize = 500;

/// What there is to complete in the present session.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Prompt templates and skills, without the slash.
    pub commands: Vec<String>,
    /// Names of this directory's sessions.
    pub sessions: Vec<String>,
    /// Where `@file` paths begin; none where the files are another machine's.
    pub work_dir: Option<PathBuf>,
}

/// Written between lines, and read by the editor's thread in the midst of one: a key cannot wait for a message.
#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<Known>>);

impl Shared {
    pub fn set(&self, known: Known) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }

    pub fn get(&self) -> Known {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Where what is replaced begins, and what may stand there instead. `typed` goes up to the cursor.
pub fn complete(typed: &str, known: &Known) -> (usize, Vec<String>) {
    if let Some(at) = mention(typed) {
        return (at, files(typed.get(at + 1..).unwrap_or_default(), known));
    }
    let Some((command, begun)) = typed.split_once(' ').filter(|_| typed.starts_with('/')) else {
        return (0, if typed.starts_with('/') { commands(typed, known) } else { Vec::new() });
    };
    let sessions: Vec<&str> = known.sessions.iter().map(String::as_str).collect();
    let words = match command {
        "/mode" => &["ask", "auto", "plan"][..],
        "/queue" => &["clear"],
        "/trust" => &["no"],
        "/resume" => &sessions,
        _ => &[],
    };
    (command.len() + 1, words.iter().filter(|w| w.starts_with(begun)).map(|w| (*w).to_owned()).collect())
}

fn commands(typed: &str, known: &Known) -> Vec<String> {
    let own = slash::NAMES.iter().map(|name| (*name).to_owned());
    let offered = known.commands.iter().map(|name| format!("/{name}"));
    let mut fit: Vec<String> = own.chain(offered).filter(|name| name.starts_with(typed)).collect();
    fit.sort_unstable();
    fit.dedup();
    fit.iter().map(|name| format!("{name} ")).collect()
}

/// Where the `@` stands of the file that is being named: after white space, and with none behind it unless quoted.
fn mention(typed: &str) -> Option<usize> {
    let starts = |at: &usize| typed.get(..*at).is_some_and(|b| b.is_empty() || b.ends_with(char::is_whitespace));
    let at = typed.match_indices('@').map(|(at, _)| at).rfind(starts)?;
    let rest = typed.get(at + 1..)?;
    match rest.strip_prefix('"') {
        Some(quoted) => !quoted.contains('"'),
        None => !rest.contains(char::is_whitespace),
    }
    .then_some(at)
}

/// The paths that begin so, each with its `@`. Hidden files are offered to those who type the dot.
fn files(begun: &str, known: &Known) -> Vec<String> {
    let begun = begun.strip_prefix('"').unwrap_or(begun);
    let (dir, name) =
        begun.rsplit_once('/').map_or(("", begun), |(dir, name)| (begun.get(..=dir.len()).unwrap_or_default(), name));
    let home = || std::env::var_os("HOME").map(PathBuf::from);
    let looked_in = match dir.strip_prefix("~/") {
        Some(rest) => home().map(|home| home.join(rest)),
        None => known.work_dir.as_ref().map(|work_dir| work_dir.join(dir)),
    };
    let entries = looked_in.filter(|_| known.work_dir.is_some()).and_then(|dir| dir.read_dir().ok());
    let mut found = Vec::new();
    for entry in entries.into_iter().flatten().flatten() {
        let Ok(file) = entry.file_name().into_string() else { continue };
        if !file.starts_with(name) || (file.starts_with('.') && !name.starts_with('.')) || file.contains(['"', '\n']) {
            continue;
        }
        let is_dir = entry.path().is_dir();
        let path = format!("{dir}{file}");
        found.push(match (is_dir, path.contains(char::is_whitespace)) {
            (true, false) => format!("@{path}/"),
            (true, true) => format!("@\"{path}/"),
            (false, false) => format!("@{path} "),
            (false, true) => format!("@\"{path}\" "),
        });
    }
    found.sort_unstable();
    found.truncate(FILES);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tab_completes() {
        let dir = tempfile::tempdir().unwrap();
        for file in ["src/main.rs", "src/my file", "sun", ".hidden", "a dir/x", "say \"x\""] {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let known = Known {
            commands: vec!["review".into(), "skill:pdf".into(), "tree".into()],
            sessions: vec!["the parser".into(), "other".into()],
            work_dir: Some(dir.path().to_owned()),
        };
        for (typed, at, offered) in [
            ("/re", 0, &["/resume ", "/review ", "/rewind "][..]),
            ("/tr", 0, &["/tree ", "/trust "]),
            ("/skill:", 0, &["/skill:pdf "]),
            ("re", 0, &[]),
            ("see /re", 0, &[]),
            ("/mode a", 6, &["ask", "auto"]),
            ("/resume the p", 8, &["the parser"]),
            ("/review the p", 8, &[]),
            ("look at @s", 8, &["@src/", "@sun "]),
            ("/review @su", 8, &["@sun "]),
            ("@src/m", 0, &["@\"src/my file\" ", "@src/main.rs "]),
            ("@a", 0, &["@\"a dir/"]),
            ("@\"a dir/", 0, &["@\"a dir/x\" "]),
            ("@.", 0, &["@.hidden "]),
            ("@src/main.rs ", 0, &[]),
            ("me@s", 0, &[]),
            ("@nowhere/", 0, &[]),
        ] {
            let (place, got) = complete(typed, &known);
            assert_eq!(got, offered, "{typed}");
            assert!(place == at || got.is_empty(), "{typed}: {place}");
        }
        let absolute = format!("@{}/su", dir.path().display());
        assert_eq!(complete(&absolute, &known).1, [format!("{absolute}n ")]);
        assert!(complete("@s", &Known { work_dir: None, ..known }).1.is_empty(), "files of another machine");
    }
}
