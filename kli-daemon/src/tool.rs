//! Tools: what a model may ask to be done.
//!
//! Built-in, client-registered and MCP tools are the same to the agent: a [`ToolSpec`], and a call that
//! ends in a [`ToolOutput`]. A failure is an output with `is_error`, never a lost panic.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use kli_protocol::api::{Change, Location};
use kli_protocol::record::Block;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

mod args;
mod bash;
mod diff;
mod edit;
mod file;
mod find;
mod grep;
pub(crate) mod image;
mod job_tools;
pub mod jobs;
mod ls;
mod output;
mod path;
pub mod policy;
pub mod process;
mod read;
pub mod sandbox;
pub(crate) mod shell;
#[cfg(test)]
mod testing;
mod walk;
mod write;

pub use shell::{CommandError, CommandOutcome, run_command};

pub type Arguments = Map<String, Value>;

/// What a model is told of a tool, and what the agent must know of it.
#[derive(Clone, Debug)]
pub struct ToolSpec {
    /// `[A-Za-z0-9_-]{1,64}`
    pub name: String,
    pub description: String,
    /// A JSON schema of an object.
    pub parameters: Value,
    pub effect: Effect,
}

/// What a tool may do to the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Looks only: may run beside others.
    Reads,
    /// Changes files that its arguments name.
    Writes,
    /// Anything: runs commands.
    Executes,
}

/// One call, for a person: before it runs.
#[derive(Clone, Debug, Default)]
pub struct Outline {
    /// One line, such as `read src/main.rs`.
    pub title: String,
    pub locations: Vec<Location>,
    /// The edit before it is made.
    pub changes: Option<Vec<Change>>,
}

/// Where and how a call runs.
#[derive(Clone)]
pub struct ToolContext {
    pub session_id: String,
    pub tool_call_id: String,
    /// The session's work directory; it may be gone.
    pub work_dir: PathBuf,
    /// Of the session, over the daemon's own.
    pub env: Arc<BTreeMap<String, String>>,
    pub cancel: CancellationToken,
    /// Takes what the call prints while it runs. Must not block.
    pub progress: Progress,
    /// Whether the model takes images; else a tool says so in text.
    pub images: bool,
    /// The session's background commands.
    pub jobs: Arc<jobs::Jobs>,
    /// What commands may touch.
    pub sandbox: sandbox::Sandbox,
}

/// A callback for output as it comes.
pub type Progress = Arc<dyn Fn(&str) + Send + Sync>;

/// What a call brought.
#[derive(Clone, Debug, Default)]
pub struct ToolOutput {
    pub content: Vec<Block>,
    /// For clients, not for the model: a diff, a path, an exit code.
    pub details: Option<Value>,
    pub is_error: bool,
}

impl ToolOutput {
    pub fn text(text: impl Into<String>) -> ToolOutput {
        ToolOutput { content: vec![Block::text(text)], details: None, is_error: false }
    }

    pub fn error(text: impl Into<String>) -> ToolOutput {
        ToolOutput { content: vec![Block::text(text)], details: None, is_error: true }
    }
}

pub trait Tool: Send + Sync {
    fn spec(&self) -> &ToolSpec;

    /// What a person is shown before the call; must be quick and tolerate any arguments. It may read the files
    /// that the arguments name, to tell what would change.
    fn outline(&self, arguments: &Arguments, work_dir: &std::path::Path) -> Outline;

    /// Runs the call. Dropping the future, or `context.cancel`, ends it with all its child processes.
    fn call<'a>(&'a self, arguments: Arguments, context: ToolContext) -> BoxFuture<'a, ToolOutput>;
}

/// The tools that every session has, in the order in which a model is told of them (which stays the same, for the
/// providers' prompt caches).
pub fn builtin() -> Vec<Arc<dyn Tool>> {
    vec![
        Arc::new(read::Read::new()),
        Arc::new(write::Write::new()),
        Arc::new(edit::Edit::new()),
        Arc::new(bash::Bash::new()),
        Arc::new(grep::Grep::new()),
        Arc::new(find::Find::new()),
        Arc::new(ls::Ls::new()),
        Arc::new(job_tools::JobOutput::new()),
        Arc::new(job_tools::JobKill::new()),
    ]
}

/// Runs a part of a call that blocks, on a thread where it may. It goes on to its end when the call is dropped,
/// unless it looks at the token that it is given, which is then cancelled.
async fn blocking<F>(cancel: &CancellationToken, work: F) -> ToolOutput
where
    F: FnOnce(&CancellationToken) -> ToolOutput + Send + 'static,
{
    let token = cancel.child_token();
    let _end_with_the_call = token.clone().drop_guard();
    match tokio::task::spawn_blocking(move || work(&token)).await {
        Ok(output) => output,
        Err(error) => ToolOutput::error(format!("The tool failed by a fault of its own: {error}")),
    }
}

/// What a tool answers that was cancelled half-way.
fn aborted() -> ToolOutput {
    ToolOutput::error("Aborted.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_builtin_tool_can_be_offered_and_called_with_anything() {
        let place = testing::Place::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let tools = builtin();
        let names: Vec<_> = tools.iter().map(|tool| tool.spec().name.as_str()).collect();
        assert_eq!(names, ["read", "write", "edit", "bash", "grep", "find", "ls", "job_output", "job_kill"]);
        for tool in &tools {
            let spec = tool.spec();
            assert_eq!(spec.parameters["type"], "object", "{}", spec.name);
            let properties = spec.parameters["properties"].as_object().unwrap();
            for required in spec.parameters["required"].as_array().into_iter().flatten() {
                assert!(properties.contains_key(required.as_str().unwrap()), "{}: {required}", spec.name);
            }
            for odd in [Value::Null, 7.into(), "\u{0}\u{202e}..".into(), Value::Array(vec![]), true.into()] {
                let arguments: Arguments = properties.keys().map(|name| (name.clone(), odd.clone())).collect();
                let output = runtime.block_on(place.call(tool.as_ref(), Value::Object(arguments.clone())));
                let harmless = matches!(spec.name.as_str(), "ls" | "job_output") && odd.is_null();
                assert_eq!(output.is_error, !harmless, "{} {odd}: {}", spec.name, testing::text(&output));
                let policy = policy::Call { spec, arguments: &arguments, work_dir: &place.context.work_dir };
                policy::judge(kli_protocol::api::Mode::Ask, &policy::Rules::default(), policy);
            }
        }
    }
}
