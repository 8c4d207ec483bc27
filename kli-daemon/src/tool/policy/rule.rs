//! Rules in words: `bash`, `bash(git status)`, `edit(src/**)`, `read(~/notes/*.md)`, `*(docs/**)`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use globset::{GlobBuilder, GlobMatcher};

use super::{Subject, Target, command};
use crate::tool::{ToolSpec, path};

/// What the configuration and the session allow and deny.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    pub allow: Vec<Rule>,
    pub deny: Vec<Rule>,
}

impl Rules {
    /// Of what a person wrote: a tool whose name is nearly that of a built-in one is an error. Other names may be those
    /// of tools that MCP servers or clients offer later.
    pub fn parse<S: AsRef<str>>(allow: &[S], deny: &[S]) -> Result<Rules, RuleError> {
        let all = |rules: &[S]| rules.iter().map(|rule| written(rule.as_ref())).collect::<Result<Vec<_>, _>>();
        Ok(Rules { allow: all(allow)?, deny: all(deny)? })
    }

    /// Rules for tools that are not built in: they count only while an MCP server or a client offers the tool.
    pub fn for_other_tools(&self) -> impl Iterator<Item = &Rule> {
        self.allow
            .iter()
            .chain(&self.deny)
            .filter(|rule| rule.tool.as_deref().is_some_and(|tool| !BUILTIN.contains(&tool)))
    }

    pub(super) fn denies(&self, spec: &ToolSpec, subject: &Subject) -> Option<&Rule> {
        self.deny.iter().find(|rule| rule.denies(spec, subject))
    }

    /// The most exact one that allows.
    pub(super) fn allows(&self, spec: &ToolSpec, subject: &Subject) -> Option<&Rule> {
        let mut allowing = self.allow.iter().filter(|rule| rule.allows(spec, subject));
        let first = allowing.next()?;
        if first.is_literal() { Some(first) } else { allowing.find(|rule| rule.is_literal()).or(Some(first)) }
    }
}

/// One rule: a tool, and which of its calls.
#[derive(Clone, Debug)]
pub struct Rule {
    text: String,
    /// None: every tool.
    tool: Option<String>,
    scope: Scope,
}

#[derive(Clone, Debug)]
enum Scope {
    All,
    /// The command begins with these words.
    Words(Vec<String>),
    Paths(Paths),
}

/// The tools of [`crate::tool::builtin`].
pub const BUILTIN: [&str; 9] = ["read", "write", "edit", "bash", "grep", "find", "ls", "job_output", "job_kill"];

fn written(text: &str) -> Result<Rule, RuleError> {
    let rule: Rule = text.parse()?;
    let tool = rule.tool.as_deref().unwrap_or_default();
    match BUILTIN.iter().find(|builtin| is_misspelt(tool, builtin)) {
        Some(meant) => Err(RuleError::Misspelt { tool: tool.to_owned(), meant, rule: rule.text }),
        None => Ok(rule),
    }
}

/// Another case, two letters swapped, or, where the name is long enough, one letter too many, too few or wrong.
fn is_misspelt(tool: &str, meant: &str) -> bool {
    if tool == meant || tool.eq_ignore_ascii_case(meant) {
        return tool != meant;
    }
    let (tool, meant) = (tool.as_bytes(), meant.as_bytes());
    let begin = tool.iter().zip(meant).take_while(|(a, b)| a == b).count();
    let rest = |name: &[u8]| name.get(begin..).map(<[u8]>::to_vec).unwrap_or_default();
    let (mut a, mut b) = (rest(tool), rest(meant));
    while a.last().is_some_and(|last| b.last() == Some(last)) {
        a.pop();
        b.pop();
    }
    match (&a[..], &b[..]) {
        ([a, b], [c, d]) => a == d && b == c,
        (a, b) => meant.len() >= 4 && a.len() <= 1 && b.len() <= 1,
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RuleError {
    #[error("the rule \"{0}\" is not of the form TOOL or TOOL(WHICH)")]
    Form(String),
    #[error("the rule \"{0}\" has nothing between its parentheses; write only the tool to mean all its calls")]
    Empty(String),
    #[error("the rule \"{0}\": its command is not one simple command: {1}")]
    Command(String, &'static str),
    #[error("the rule \"{0}\": its glob is wrong: {1}")]
    Glob(String, String),
    #[error(
        "the rule \"{0}\": only bash, read, write, edit, grep, find, ls and * take parentheses; if {1} is another tool, \
         write it without them to mean all its calls"
    )]
    NoScope(String, String),
    #[error("the rule \"{rule}\": there is no tool {tool}. Did you mean {meant}? Built in are {}", BUILTIN.join(", "))]
    Misspelt { rule: String, tool: String, meant: &'static str },
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Rule, RuleError> {
        let text = text.trim();
        let form = || RuleError::Form(text.to_owned());
        let (tool, scope) = match text.split_once('(') {
            None => (text, None),
            Some((tool, rest)) => (tool, Some(rest.strip_suffix(')').ok_or_else(form)?)),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if tool != "*" && (tool.is_empty() || !tool.chars().all(is_name)) {
            return Err(form());
        }
        let scope = match scope {
            None => Scope::All,
            Some(scope) if scope.trim().is_empty() => return Err(RuleError::Empty(text.to_owned())),
            Some(words) if tool == "bash" => {
                Scope::Words(command::simple_words(words).map_err(|why| RuleError::Command(text.to_owned(), why))?)
            }
            Some(glob) if matches!(tool, "read" | "write" | "edit" | "grep" | "find" | "ls" | "*") => {
                Scope::Paths(Paths::new(glob).map_err(|error| RuleError::Glob(text.to_owned(), error.to_string()))?)
            }
            Some(_) => return Err(RuleError::NoScope(text.to_owned(), tool.to_owned())),
        };
        Ok(Rule { text: text.to_owned(), tool: (tool != "*").then(|| tool.to_owned()), scope })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Rule) -> bool {
        self.text == other.text
    }
}

impl Rule {
    /// It names one file and no pattern of files.
    pub(super) fn is_literal(&self) -> bool {
        matches!(&self.scope, Scope::Paths(paths) if paths.literal)
    }

    /// In doubt not.
    fn allows(&self, spec: &ToolSpec, subject: &Subject) -> bool {
        self.is_about(spec)
            && match (&self.scope, subject) {
                (Scope::All, _) => true,
                (Scope::Words(words), Subject::Command(command)) => command.begins_with(words),
                (Scope::Paths(paths), Subject::File(file)) => {
                    file.real.as_deref().is_some_and(|real| paths.matches(real, file))
                }
                _ => false,
            }
    }

    /// In doubt yes.
    fn denies(&self, spec: &ToolSpec, subject: &Subject) -> bool {
        self.is_about(spec)
            && match (&self.scope, subject) {
                (Scope::All, _) => true,
                (Scope::Words(words), Subject::Command(command)) => command.may_run(words),
                (Scope::Paths(paths), Subject::File(file)) => {
                    let tidy: PathBuf = file.named.components().collect();
                    file.real.as_deref().is_some_and(|real| paths.matches(real, file)) || paths.matches(&tidy, file)
                }
                _ => false,
            }
    }

    fn is_about(&self, spec: &ToolSpec) -> bool {
        self.tool.as_ref().is_none_or(|tool| *tool == spec.name)
    }
}

/// A glob for paths: relative ones count from the work directory.
#[derive(Clone, Debug)]
struct Paths {
    glob: GlobMatcher,
    /// The directory itself of `directory/**`.
    top: Option<GlobMatcher>,
    absolute: bool,
    literal: bool,
}

impl Paths {
    fn new(glob: &str) -> Result<Paths, globset::Error> {
        let home_or_glob = if glob == "~" || glob.starts_with("~/") {
            // The home directory is a path, not a pattern.
            let home = path::resolve("~", Path::new("/"));
            format!("{}{}", globset::escape(&home.to_string_lossy()), glob.get(1..).unwrap_or_default())
        } else {
            glob.strip_prefix("./").filter(|rest| !rest.is_empty()).unwrap_or(glob).to_owned()
        };
        let matcher = |glob: &str| -> Result<GlobMatcher, globset::Error> {
            Ok(GlobBuilder::new(glob).literal_separator(true).backslash_escape(true).build()?.compile_matcher())
        };
        let top = match home_or_glob.strip_suffix("/**") {
            Some(top) if !top.is_empty() => Some(matcher(top)?),
            _ => None,
        };
        Ok(Paths {
            glob: matcher(home_or_glob.trim_end_matches('/'))?,
            top,
            absolute: home_or_glob.starts_with('/'),
            literal: !unescaped(glob).contains(['*', '?', '[', '{']),
        })
    }

    fn matches(&self, path: &Path, file: &Target) -> bool {
        let matches = |path: &Path| self.glob.is_match(path) || self.top.as_ref().is_some_and(|top| top.is_match(path));
        if self.absolute {
            return matches(path);
        }
        match path.strip_prefix(&file.work_dir) {
            // `.` and `**` mean the work directory too.
            Ok(below) if below.as_os_str().is_empty() => matches(Path::new(".")),
            Ok(below) => matches(&below.components().collect::<PathBuf>()),
            Err(_) => false,
        }
    }
}

/// Without what is escaped, as [`globset::escape`] does it: each special character in brackets.
fn unescaped(glob: &str) -> String {
    ["[*]", "[?]", "[[]", "[]]", "[{]", "[}]", "[!]"]
        .iter()
        .fold(glob.to_owned(), |glob, escaped| glob.replace(escaped, ""))
}
