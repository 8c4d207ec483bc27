//! What stands in front of a conversation: system prompt and tools.
//!
//! Files of the work directory and of the user speak in it. They are read when a run begins and then hold for all
//! its turns: a run that edits them does not lose the provider's cache of its own history. What did not change is
//! the same text in memory too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kli_protocol::ApiError;
use kli_protocol::api::{Mode, ModelRef, ToolDescription};
use serde_json::{Map, Value};

use super::Actor;
use crate::context::estimate;
use crate::context::prompt::{Parts, SkillLine, system_prompt};
use crate::session::branch::{Setting, Shape};
use crate::tool::{Tool, ToolSpec};
use crate::workspace::{Workspace, context_files};

/// System prompt and tools, and what they were made from.
pub(super) struct Instructions {
    mode: Mode,
    work_dir: String,
    /// Only to compare.
    tools: Vec<Arc<dyn Tool>>,
    files: Files,
    system_prompt: Arc<str>,
    descriptions: Arc<[ToolDescription]>,
    /// Their tokens.
    overhead: u64,
}

/// What files say to the model.
#[derive(Clone, Debug, Default, PartialEq)]
struct Files {
    system: Option<String>,
    append: Vec<String>,
    skills: Vec<SkillLine>,
    context: Vec<(String, String)>,
}

impl Instructions {
    fn fit(&self, mode: Mode, work_dir: &str, tools: &[Arc<dyn Tool>]) -> bool {
        let same =
            |(a, b): (&Arc<dyn Tool>, &Arc<dyn Tool>)| Arc::ptr_eq(a, b) || is_described_alike(a.spec(), b.spec());
        self.mode == mode
            && self.work_dir == work_dir
            && self.tools.len() == tools.len()
            && self.tools.iter().zip(tools).all(same)
    }
}

impl Actor {
    /// For the next request; of a run that has begun its files are read no more.
    fn instructions(&self, tools: &[Arc<dyn Tool>]) -> Arc<Instructions> {
        let work_dir = self.work_dir();
        let known = self.instructions.as_ref();
        let begun = self.run.as_ref().is_some_and(|run| run.instructed);
        let files = match known.filter(|known| begun && known.work_dir == work_dir) {
            Some(known) if known.fit(self.mode, &work_dir, tools) => return known.clone(),
            Some(known) => known.files.clone(),
            None => self.files(&work_dir),
        };
        if let Some(known) = known
            && known.fit(self.mode, &work_dir, tools)
            && known.files == files
        {
            return known.clone();
        }
        let descriptions: Arc<[ToolDescription]> = tools.iter().map(|tool| describe(tool.spec())).collect();
        let system_prompt = system_prompt(&Parts {
            tools: &descriptions,
            context_files: &files.context,
            custom: files.system.as_deref(),
            append: &files.append,
            skills: &files.skills,
            mode: self.mode,
            work_dir: &work_dir,
            date: &self.date,
        });
        let overhead = estimate::overhead(&system_prompt, &descriptions);
        let (tools, system_prompt) = (tools.to_vec(), system_prompt.into());
        Arc::new(Instructions { mode: self.mode, work_dir, tools, files, system_prompt, descriptions, overhead })
    }

    fn tools(&self) -> Vec<Arc<dyn Tool>> {
        let mut tools = self.deps.tools.clone();
        tools.extend(self.mcp.tools());
        // One that was registered before a server came with the same name.
        let clients = self.deps.client_tools.of_session(&self.id, &self.deps.clock);
        let is_free = |tool: &Arc<dyn Tool>| tools.iter().all(|other| other.spec().name != tool.spec().name);
        let clients: Vec<_> = clients.into_iter().filter(is_free).collect();
        tools.extend(clients);
        tools
    }

    /// The same, kept for the next turns.
    pub(super) fn instruct(&mut self) {
        let instructions = self.instructions(&self.tools());
        self.instructions = Some(instructions);
        if let Some(run) = &mut self.run {
            run.instructed = true;
        }
    }

    fn files(&self, work_dir: &str) -> Files {
        let dir = Path::new(work_dir);
        let workspace = Workspace::load(&self.deps.places(dir));
        let context = context_files(&self.deps.places_for_context(dir));
        Files {
            skills: workspace.skill_lines(),
            system: workspace.system,
            append: workspace.append,
            context: context.into_iter().map(|(path, text)| (path.display().to_string(), text)).collect(),
        }
    }

    /// Everything of a request but its messages.
    pub(super) fn shape(
        &self,
        model: &ModelRef,
        options: BTreeMap<String, serde_json::Value>,
    ) -> Result<Shape, ApiError> {
        let (model, provider) = self.deps.models().find(&model.provider, &model.model_id)?;
        Ok(Shape { model, provider, options, setting: self.setting() })
    }

    /// What of a request does not depend on the model.
    pub(super) fn setting(&self) -> Setting {
        let tools = self.tools();
        let instructions = self.instructions(&tools);
        Setting {
            // Not those that the text was made from: another client may offer one of the same name by now.
            tools,
            descriptions: instructions.descriptions.clone(),
            work_dir: PathBuf::from(&instructions.work_dir),
            system_prompt: instructions.system_prompt.clone(),
            overhead: instructions.overhead,
        }
    }
}

fn is_described_alike(a: &ToolSpec, b: &ToolSpec) -> bool {
    a.name == b.name && a.description == b.description && a.effect == b.effect && a.parameters == b.parameters
}

fn describe(spec: &ToolSpec) -> ToolDescription {
    ToolDescription {
        name: spec.name.clone(),
        description: spec.description.clone(),
        parameters: object_schema(&spec.parameters),
    }
}

/// The schema with what providers insist on, though it may be left out: one tool without it, and each request is
/// refused.
fn object_schema(schema: &Value) -> Value {
    let mut schema = schema.as_object().cloned().unwrap_or_default();
    schema.insert("type".into(), "object".into());
    schema.entry("properties").or_insert_with(|| Map::new().into());
    schema.into()
}
