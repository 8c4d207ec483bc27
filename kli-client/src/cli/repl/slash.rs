//! What a typed line means.

/// The commands, for completion and help.
pub const NAMES: &[&str] = &[
    "/abort",
    "/allow",
    "/always",
    "/bash",
    "/clone",
    "/compact",
    "/continue",
    "/deny",
    "/fork",
    "/goto",
    "/help",
    "/label",
    "/mode",
    "/model",
    "/name",
    "/new",
    "/queue",
    "/quit",
    "/resume",
    "/rewind",
    "/session",
    "/tree",
    "/trust",
];

pub const HELP: &str = "\
/tree                 draw the tree of this session
/goto ENTRY           move the leaf to an entry, or before a prompt (ENTRY: id or label; root)
/goto ENTRY summarize [TEXT]   and leave a summary of the branch that is left
/fork [N|ENTRY]       new session that ends before a prompt (list them), or at an entry
/clone                new session with the same branch
/rewind [N|ENTRY]     new session that ends before the last prompt, or before that one
/resume [N|SESSION]   list the sessions of this directory, or change to one
/new [NAME]           new session
/label [ENTRY] TEXT   label the leaf, or an entry; `-` as TEXT takes the label away
/name TEXT            name this session; `-` as TEXT takes the name away
/model [MODEL]        list the models, or change to one (provider/model)
/mode [ask|auto|plan] which tool calls need a person
/trust [no]           use this directory's own configuration, skills and prompts, or not
/compact [TEXT]       sum up older history; TEXT: what to dwell on
/continue             go on after an error, an abort or a crash
/abort                end what goes on (as Ctrl-C)
/queue                show what waits to be said; `/queue clear` takes it back
/allow /always /deny  answer a tool call that waits
/session              show the state of this session
/bash COMMAND, !CMD   run a command here; !!CMD: and do not show it to the model
/quit                 leave (as Ctrl-D); a run goes on without us
/NAME, @FILE           a prompt template or a skill (/skill:NAME) · puts a file after the prompt; Tab completes both
A line while a run goes on is said to it at its next turn. A line that ends in \\ goes on.";

/// One line of the person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Blank,
    /// For the model.
    Text(String),
    /// A command and its argument, both trimmed.
    Command(String, String),
    Bash {
        command: String,
        hidden: bool,
    },
}

/// Reads a line. What begins with a slash and is none of our commands may be a template of the daemon's.
pub fn read(line: &str) -> Said {
    let trimmed = line.trim();
    if trimmed.is_empty() {
        return Said::Blank;
    }
    if let Some(command) = trimmed.strip_prefix("!!") {
        return bash(command, true);
    }
    if let Some(command) = trimmed.strip_prefix('!') {
        return bash(command, false);
    }
    let (name, rest) = trimmed.split_once(char::is_whitespace).unwrap_or((trimmed, ""));
    if name == "/exit" {
        return Said::Command("/quit".into(), String::new());
    }
    if NAMES.contains(&name) {
        return match name {
            "/bash" => bash(rest, false),
            _ => Said::Command(name.to_owned(), rest.trim().to_owned()),
        };
    }
    Said::Text(line.to_owned())
}

/// The template or skill that a text for the model begins with, without its slash; a path is none.
pub fn template(text: &str) -> Option<&str> {
    let name = text.strip_prefix('/')?.split(char::is_whitespace).next()?;
    let one_word = name.chars().all(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | ':'));
    (one_word && !name.is_empty()).then_some(name)
}

fn bash(command: &str, hidden: bool) -> Said {
    match command.trim() {
        "" => Said::Blank,
        command => Said::Bash { command: command.to_owned(), hidden },
    }
}

/// An answer to the question whether a call is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Allow,
    Always,
    /// With what the model is told.
    Deny(Option<String>),
}

pub fn answer(line: &str) -> Option<Answer> {
    let (word, rest) = line.trim().split_once([' ', ',']).unwrap_or((line.trim(), ""));
    let rest = rest.trim_matches([' ', ',']);
    match word.to_lowercase().as_str() {
        "y" | "yes" if rest.is_empty() => Some(Answer::Allow),
        "a" | "always" if rest.is_empty() => Some(Answer::Always),
        "n" | "no" => Some(Answer::Deny((!rest.is_empty()).then(|| rest.to_owned()))),
        _ => None,
    }
}

/// The N of a list, counted from 1; longer numbers are ids.
pub fn number(text: &str) -> Option<usize> {
    (text.len() <= 3 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let command = |name: &str, rest: &str| Said::Command(name.into(), rest.into());
        let bash = |c: &str, hidden| Said::Bash { command: c.into(), hidden };
        for (line, said) in [
            ("", Said::Blank),
            ("  \t", Said::Blank),
            ("hi there", Said::Text("hi there".into())),
            ("/tree", command("/tree", "")),
            ("  /goto   ab12  ", command("/goto", "ab12")),
            ("/label ab12 my label", command("/label", "ab12 my label")),
            ("/exit", command("/quit", "")),
            ("/usr/bin/env is what?", Said::Text("/usr/bin/env is what?".into())),
            ("/review src", Said::Text("/review src".into())),
            ("!ls -l", bash("ls -l", false)),
            ("!! ls", bash("ls", true)),
            ("/bash ls", bash("ls", false)),
            ("!", Said::Blank),
        ] {
            assert_eq!(read(line), said, "{line:?}");
        }
    }

    #[test]
    fn templates() {
        for (text, name) in [
            ("/review src", Some("review")),
            ("/skill:pdf\nx", Some("skill:pdf")),
            ("/forc", Some("forc")),
            (" /forc", None),
            ("/usr/bin/env is what?", None),
            ("/etc/", None),
            ("/ is the root", None),
            ("a /word", None),
        ] {
            assert_eq!(template(text), name, "{text:?}");
        }
    }

    #[test]
    fn answers() {
        for (line, said) in [
            ("y", Some(Answer::Allow)),
            (" YES ", Some(Answer::Allow)),
            ("a", Some(Answer::Always)),
            ("n", Some(Answer::Deny(None))),
            ("no, use cp instead", Some(Answer::Deny(Some("use cp instead".into())))),
            ("n use cp", Some(Answer::Deny(Some("use cp".into())))),
            ("", None),
            ("y but carefully", None),
            ("yeah", None),
            ("all", None),
        ] {
            assert_eq!(answer(line), said, "{line:?}");
        }
    }

    #[test]
    fn numbers_are_short() {
        for (text, n) in
            [("1", Some(1)), ("042", Some(42)), ("1234", None), ("12345678", None), ("1a", None), ("", None)]
        {
            assert_eq!(number(text), n, "{text:?}");
        }
    }
}
