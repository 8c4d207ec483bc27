//! Which tool calls may be made, which need a person, which must not be made.
//!
//! Decided from the mode, the rules, and what a call would touch; paths are made real first, so that neither `..`
//! nor a link leads out of the work directory unseen. This is a question of consent, not a wall: what an allowed
//! command does is its own affair, and for that there is the sandbox.
//!
//! In this order: a deny rule denies in every mode; `plan` denies what may change anything; `auto` allows the rest;
//! in `ask` (and for the reading that `plan` leaves) sensitive files are always asked for, then an allow rule
//! allows, then reading inside the work directory is free, and all else is asked for.

mod command;
mod rule;
mod sensitive;
#[cfg(test)]
mod tests;

pub use rule::{BUILTIN, Rule, RuleError, Rules};
pub(crate) use sensitive::is_sensitive;

use std::path::{Path, PathBuf};

use kli_protocol::api::Mode;

use super::{Arguments, Effect, ToolSpec, args, file, path};

/// What becomes of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    Ask {
        /// For the person, one sentence.
        reason: String,
        /// What "allow for this session" would add to the allow rules; none where no rule is narrow enough.
        rule: Option<String>,
    },
    /// For the model and the person, one sentence or two.
    Deny {
        reason: String,
    },
}

/// A call to be judged.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    pub spec: &'a ToolSpec,
    pub arguments: &'a Arguments,
    pub work_dir: &'a Path,
}

/// Looks at the file system (for links) and at nothing else that is not passed in.
pub fn judge(mode: Mode, rules: &Rules, call: Call<'_>) -> Verdict {
    let subject = Subject::of(&call);
    if let Some(rule) = rules.denies(call.spec, &subject) {
        return Verdict::Deny { reason: format!("The rule \"{rule}\" forbids this call.") };
    }
    match (mode, call.spec.effect) {
        (Mode::Plan, Effect::Writes | Effect::Executes) => Verdict::Deny {
            reason: format!(
                "The session is in plan mode, in which nothing may change anything, and {} may. Only look and plan; a \
                 person can set another mode.",
                call.spec.name
            ),
        },
        (Mode::Auto, _) => Verdict::Allow,
        (Mode::Ask | Mode::Plan, _) => consent(rules, call.spec, &subject),
    }
}

fn consent(rules: &Rules, spec: &ToolSpec, subject: &Subject) -> Verdict {
    let allowed = rules.allows(spec, subject);
    let guarded = subject.guarded(spec.effect);
    match (allowed, guarded) {
        // A rule about many files does not mean these; one that names the very file does.
        (Some(rule), Some(_)) if rule.is_literal() => return Verdict::Allow,
        (_, Some(reason)) => return Verdict::Ask { reason, rule: None },
        (Some(_), None) => return Verdict::Allow,
        (None, None) => {}
    }
    let name = &spec.name;
    let (reason, rule) = match (spec.effect, subject) {
        (Effect::Reads, Subject::File(file)) if file.outside => {
            (format!("It reads {}, outside of the work directory.", file.shown()), file.rule(name))
        }
        (Effect::Reads, _) => return Verdict::Allow,
        (Effect::Writes, Subject::File(file)) if file.outside => {
            (format!("It writes {}, outside of the work directory.", file.shown()), file.rule(name))
        }
        (Effect::Writes, Subject::File(file)) => (format!("It writes {}.", file.shown()), file.rule(name)),
        (Effect::Executes, Subject::Command(command)) => ("It runs a command.".to_owned(), command.rule(name)),
        // It ends what the session itself started.
        (Effect::Executes, Subject::None) if name == "job_kill" => return Verdict::Allow,
        (Effect::Writes, _) => (format!("{name} may change something."), Some(name.clone())),
        (Effect::Executes, _) => (format!("{name} may do anything."), Some(name.clone())),
    };
    Verdict::Ask { reason, rule }
}

/// What a call is about.
#[derive(Debug)]
enum Subject {
    File(Target),
    Command(command::Command),
    None,
}

/// A file or directory, as named and as it really is.
#[derive(Debug)]
struct Target {
    named: PathBuf,
    /// None: nobody can say where it leads (`gone/../x`, a loop of links), so it is taken for outside and no rule
    /// allows it.
    real: Option<PathBuf>,
    work_dir: PathBuf,
    outside: bool,
}

impl Subject {
    fn of(call: &Call<'_>) -> Subject {
        let path = args::optional_text(call.arguments, "path").ok().flatten();
        match call.spec.name.as_str() {
            "read" | "write" | "edit" => {
                path.map_or(Subject::None, |path| Subject::File(Target::new(path, call.work_dir)))
            }
            "grep" | "find" | "ls" => Subject::File(Target::new(path.unwrap_or("."), call.work_dir)),
            "bash" => match args::optional_text(call.arguments, "command") {
                Ok(Some(command)) => Subject::Command(command::Command::new(command, call.work_dir)),
                _ => Subject::None,
            },
            _ => Subject::None,
        }
    }

    /// Why a person is asked whatever is allowed in general.
    fn guarded(&self, effect: Effect) -> Option<String> {
        match self {
            Subject::File(file) if is_sensitive(&file.named) || file.real.as_deref().is_some_and(is_sensitive) => {
                Some(format!("{} may hold secrets, such as keys or passwords.", file.shown()))
            }
            Subject::File(file)
                if effect == Effect::Writes && file.real.as_deref().is_some_and(sensitive::is_steering) =>
            {
                Some(format!("{} decides what git or kli runs or allows.", file.shown()))
            }
            Subject::Command(command) => command
                .sensitive_word()
                .map(|word| format!("The command names {word}, which may hold secrets, such as keys or passwords.")),
            _ => None,
        }
    }
}

impl Target {
    fn new(name: &str, work_dir: &Path) -> Target {
        let work_dir = std::fs::canonicalize(work_dir).unwrap_or_else(|_| work_dir.to_owned());
        let named = path::resolve(name, &work_dir);
        let real = file::real_path(&named).ok();
        let outside = real.as_ref().is_none_or(|real| !real.starts_with(&work_dir));
        Target { named, real, work_dir, outside }
    }

    fn shown(&self) -> String {
        match &self.real {
            Some(real) => path::display(real, &self.work_dir),
            None => path::display(&self.named, Path::new("")),
        }
    }

    /// The rule that means this file alone.
    fn rule(&self, tool: &str) -> Option<String> {
        let real = self.real.as_ref()?;
        let path = real.strip_prefix(&self.work_dir).unwrap_or(real);
        // A name that is no text would become another's, and so would one with the glob's escape in it.
        let path = if path.as_os_str().is_empty() { "." } else { path.to_str().filter(|path| !path.contains('\\'))? };
        Some(format!("{tool}({})", globset::escape(path)))
    }
}
