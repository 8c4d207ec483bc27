//! What a work directory and the user's configuration directory say to the model: context files, system prompts,
//! skills, prompt templates, and the files that a prompt mentions.
//!
//! Reads only, and blocks: async callers use `spawn_blocking`. Everything is bounded, and what cannot be read is
//! passed over with a warning. Whether a directory is trusted is the caller's to know: an untrusted one is simply not
//! given.

mod expand;
mod read;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kli_protocol::api::{CommandInfo, Warning};

use crate::context::prompt::SkillLine;
use crate::context::{expand as text, preview};

pub use expand::{Expanded, expand};

const CONTEXT_NAMES: [&str; 2] = ["AGENTS.md", "CLAUDE.md"];
/// Of one context file, and of all.
const MAX_CONTEXT_FILE: usize = 64 * 1024;
const MAX_CONTEXT: usize = 256 * 1024;
const MAX_SYSTEM: usize = 128 * 1024;
const MAX_TEMPLATE: usize = 256 * 1024;
/// Skills or templates in one directory.
const MAX_ENTRIES: usize = 500;
/// Of a skill, by its format.
const MAX_NAME: usize = 64;
const MAX_DESCRIPTION: usize = 1024;

/// Where things are looked for.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// The user's configuration directory of kli.
    pub config_dir: Option<PathBuf>,
    /// For `~`, and `~/.agents/skills`.
    pub home: Option<PathBuf>,
    /// Canonical. None: not trusted, or gone.
    pub work_dir: Option<PathBuf>,
}

/// All that was found.
#[derive(Clone, Debug, Default)]
pub struct Workspace {
    /// `SYSTEM.md`: the project's, else the user's.
    pub system: Option<String>,
    /// `APPEND_SYSTEM.md`: the user's, then the project's.
    pub append: Vec<String>,
    /// By name; the project's stand in for the user's.
    pub skills: BTreeMap<String, Skill>,
    pub prompts: BTreeMap<String, Template>,
    pub warnings: Vec<Warning>,
}

/// A directory with a `SKILL.md`, in the format of agentskills.io.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skill {
    pub name: String,
    pub description: String,
    /// Of its `SKILL.md`.
    pub path: PathBuf,
    /// Only a person may call for it.
    pub hidden: bool,
}

/// A prompt template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    pub name: String,
    pub description: String,
    pub argument_hint: Option<String>,
    pub path: PathBuf,
    pub text: String,
}

impl Workspace {
    pub fn load(places: &Places) -> Workspace {
        let mut found = Workspace::default();
        let project = places.work_dir.as_ref().map(|dir| dir.join(".kli"));
        let dirs: Vec<&Path> = [places.config_dir.as_deref(), project.as_deref()].into_iter().flatten().collect();
        for dir in &dirs {
            found.system = read::text(&dir.join("SYSTEM.md"), MAX_SYSTEM).or(found.system.take());
            found.append.extend(read::text(&dir.join("APPEND_SYSTEM.md"), MAX_SYSTEM));
        }
        let agents = |dir: &Option<PathBuf>| dir.as_ref().map(|dir| dir.join(".agents/skills"));
        let skills = [agents(&places.home), agents(&places.work_dir)];
        let [users, projects] = skills;
        let own = |dir: Option<&Path>| dir.map(|dir| dir.join("skills"));
        for dir in [users, own(places.config_dir.as_deref()), projects, own(project.as_deref())].into_iter().flatten() {
            found.add_skills(&dir);
        }
        for dir in &dirs {
            found.add_prompts(&dir.join("prompts"));
        }
        found
    }

    /// For `listCommands`: templates, then skills, by name.
    pub fn commands(&self) -> Vec<CommandInfo> {
        let prompts = self.prompts.values().map(|prompt| CommandInfo {
            name: prompt.name.clone(),
            description: prompt.description.clone(),
            source: "prompt".to_owned(),
            argument_hint: prompt.argument_hint.clone(),
            path: Some(prompt.path.to_string_lossy().into_owned()),
        });
        let skills = self.skills.values().map(|skill| CommandInfo {
            name: format!("skill:{}", skill.name),
            description: skill.description.clone(),
            source: "skill".to_owned(),
            argument_hint: None,
            path: Some(skill.path.to_string_lossy().into_owned()),
        });
        prompts.chain(skills).collect()
    }

    /// The skills that the model is told of.
    pub fn skill_lines(&self) -> Vec<SkillLine> {
        let shown = self.skills.values().filter(|skill| !skill.hidden);
        shown
            .map(|skill| SkillLine {
                name: skill.name.clone(),
                description: skill.description.clone(),
                path: skill.path.to_string_lossy().into_owned(),
            })
            .collect()
    }

    fn add_skills(&mut self, dir: &Path) {
        for entry in read::entries(dir, MAX_ENTRIES) {
            let path = entry.join("SKILL.md");
            let Some(source) = read::text(&path, MAX_TEMPLATE) else { continue };
            let (fields, _) = text::front_matter(&source);
            let folder = entry.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let name = fields.get("name").filter(|name| !name.is_empty()).cloned().unwrap_or(folder);
            let description: String =
                fields.get("description").map(|d| d.chars().take(MAX_DESCRIPTION).collect()).unwrap_or_default();
            let fault = if description.trim().is_empty() {
                Some("it has no description")
            } else if !is_name(&name) {
                Some("its name must be of letters, digits and hyphens, at most 64")
            } else {
                None
            };
            match fault {
                Some(fault) => self.warn(&path, &format!("the skill is left out: {fault}")),
                None => {
                    let hidden = fields.get("disable-model-invocation").is_some_and(|value| value == "true");
                    self.skills.insert(name.clone(), Skill { name, description, path, hidden });
                }
            }
        }
    }

    fn add_prompts(&mut self, dir: &Path) {
        for path in read::entries(dir, MAX_ENTRIES) {
            if path.extension().is_none_or(|ext| ext != "md") {
                continue;
            }
            let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            let Some(source) = read::text(&path, MAX_TEMPLATE) else { continue };
            if name.is_empty() || name.contains(char::is_whitespace) {
                self.warn(&path, "the prompt is left out: its name has white space");
                continue;
            }
            let (fields, body) = text::front_matter(&source);
            let first = body.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
            let description = fields.get("description").map_or_else(|| preview::one_line(first), Clone::clone);
            let argument_hint = fields.get("argument-hint").filter(|hint| !hint.is_empty()).cloned();
            let text = body.to_owned();
            self.prompts.insert(name.clone(), Template { name, description, argument_hint, path, text });
        }
    }

    fn warn(&mut self, path: &Path, message: &str) {
        self.warnings.push(Warning {
            kind: "workspace".to_owned(),
            message: format!("{}: {message}", path.display()),
            path: Some(path.to_string_lossy().into_owned()),
            offset: None,
        });
    }
}

/// `AGENTS.md`, else `CLAUDE.md`: the user's, then from the root of the file system down to the work directory.
pub fn context_files(places: &Places) -> Vec<(PathBuf, String)> {
    let mut dirs: Vec<&Path> = places.work_dir.iter().flat_map(|dir| dir.ancestors()).collect();
    dirs.reverse();
    let above = dirs.len().saturating_sub(1);
    let mut files: Vec<(PathBuf, String)> = Vec::new();
    let mut left = MAX_CONTEXT;
    let users = places.config_dir.as_deref().into_iter().map(|dir| (dir, true));
    // Above the work directory lie places such as /tmp, where strangers may write.
    let project = dirs.iter().enumerate().map(|(at, dir)| (*dir, at >= above));
    for (dir, any_owner) in users.chain(project) {
        let found = CONTEXT_NAMES.iter().find_map(|name| {
            let path = dir.join(name);
            let trusted = any_owner || read::is_ours(&path, places.work_dir.as_deref());
            let text = trusted.then(|| read::text(&path, MAX_CONTEXT_FILE.min(left))).flatten()?;
            Some((path, text))
        });
        if let Some((path, text)) = found
            && !files.iter().any(|(other, _)| *other == path)
        {
            left = left.saturating_sub(text.len());
            files.push((path, text));
        }
    }
    files
}

/// What a directory brings that counts only when it is trusted.
pub fn own_files(work_dir: &Path) -> Vec<PathBuf> {
    const OWN: [&str; 6] = [
        ".kli/config.toml",
        ".kli/SYSTEM.md",
        ".kli/APPEND_SYSTEM.md",
        ".kli/skills",
        ".kli/prompts",
        ".agents/skills",
    ];
    OWN.iter().map(|name| work_dir.join(name)).filter(|path| path.exists()).collect()
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MAX_NAME
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
}

#[cfg(test)]
mod tests;
