//! Tools that a connected client runs: an editor's diagnostics, its open buffers.
//!
//! They live as long as the feed of their registration; open calls then get an error result. To the agent they
//! are tools like any other.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{BoxStream, StreamExt, unfold};
use kli_protocol::api::{ClientTool, ClientToolCall, RegisterToolsParams};
use kli_protocol::record::Content;
use kli_protocol::{ApiError, ErrorKind};
use tokio::sync::{mpsc, oneshot};

use crate::clock::{Clock, short_id};
use crate::tool::{Arguments, Effect, Outline, Tool, ToolContext, ToolOutput, ToolSpec};

/// How long a client may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(600);
/// Calls that may wait for a client to read them.
const MAX_WAITING: usize = 256;
const MAX_TOOLS: usize = 128;

/// All registrations of all clients. A mutex, since connections register, runs look up, and both take a moment.
#[derive(Default)]
pub struct ClientTools(Mutex<State>);

#[derive(Default)]
struct State {
    next: u64,
    /// Newest last.
    registrations: Vec<Registration>,
    calls: HashMap<String, Call>,
}

struct Registration {
    id: u64,
    session_id: Option<String>,
    tools: Vec<ClientTool>,
    calls: mpsc::Sender<Arc<str>>,
}

struct Call {
    registration: u64,
    answer: oneshot::Sender<ToolOutput>,
}

impl ClientTools {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers tools until the feed is dropped. `taken`: names of built-in tools and of the session's MCP servers.
    pub fn register(
        self: &Arc<Self>,
        params: RegisterToolsParams,
        taken: &[String],
    ) -> Result<BoxStream<'static, Arc<str>>, ApiError> {
        check(&params.tools, taken)?;
        let (calls, inbox) = mpsc::channel(MAX_WAITING);
        let mut state = self.state();
        state.next += 1;
        let id = state.next;
        state.registrations.push(Registration { id, session_id: params.session_id, tools: params.tools, calls });
        drop(state);
        let owner = Owner { all: self.clone(), id };
        Ok(unfold((inbox, owner), |(mut inbox, owner)| async move {
            let call = inbox.recv().await?;
            Some((call, (inbox, owner)))
        })
        .boxed())
    }

    /// The tools that a session's next request has; of two with one name, the newest.
    pub fn of_session(self: &Arc<Self>, session_id: &str, clock: &Arc<dyn Clock>) -> Vec<Arc<dyn Tool>> {
        let state = self.state();
        let mut tools: Vec<Arc<dyn Tool>> = vec![];
        for registration in state.registrations.iter().rev() {
            if registration.session_id.as_deref().is_some_and(|id| id != session_id) {
                continue;
            }
            for tool in &registration.tools {
                if tools.iter().all(|t| t.spec().name != tool.name) {
                    tools.push(Arc::new(Proxy {
                        spec: spec(tool),
                        registration: registration.id,
                        all: self.clone(),
                        clock: clock.clone(),
                    }));
                }
            }
        }
        // By name: the order of registration must not change a request.
        tools.sort_by(|a, b| a.spec().name.cmp(&b.spec().name));
        tools
    }

    /// The answer of a client.
    pub fn submit(&self, call_id: &str, content: Content, is_error: bool) -> Result<(), ApiError> {
        let call = self.state().calls.remove(call_id);
        let answered = call.is_some_and(|call| {
            call.answer.send(ToolOutput { content: content.into_blocks(), details: None, is_error }).is_ok()
        });
        match answered {
            true => Ok(()),
            false => Err(ApiError::new(
                ErrorKind::CallNotFound,
                format!("No call {call_id} waits for a result: it was answered, was aborted, or took too long."),
            )),
        }
    }
}

/// Ends a registration when its feed is dropped.
struct Owner {
    all: Arc<ClientTools>,
    id: u64,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let mut state = self.all.state();
        state.registrations.retain(|r| r.id != self.id);
        // Dropping the answers' senders tells the calls that nobody will answer.
        state.calls.retain(|_, call| call.registration != self.id);
    }
}

fn check(tools: &[ClientTool], taken: &[String]) -> Result<(), ApiError> {
    let fault = |says: String| Err(ApiError::invalid_params(format!("tools: {says}")));
    if tools.is_empty() || tools.len() > MAX_TOOLS {
        return fault(format!("1 to {MAX_TOOLS} of them"));
    }
    for (index, tool) in tools.iter().enumerate() {
        let name = &tool.name;
        let legal = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if name.is_empty() || name.len() > 64 || !legal {
            return fault(format!("the name {name:?} is not of 1 to 64 letters, digits, _ and -"));
        }
        if taken.contains(name) {
            return fault(format!("{name} is a tool already, built in or of an MCP server; choose another name"));
        }
        if tools.iter().take(index).any(|other| other.name == *name) {
            return fault(format!("{name} is named twice"));
        }
        let of_object = |schema: &crate::tool::Arguments| schema.get("type").is_none_or(|kind| kind == "object");
        if !tool.parameters.as_object().is_some_and(of_object) {
            return fault(format!("the parameters of {name} must be a JSON schema of an object"));
        }
    }
    Ok(())
}

fn spec(tool: &ClientTool) -> ToolSpec {
    ToolSpec {
        name: tool.name.clone(),
        description: tool.description.clone(),
        parameters: tool.parameters.clone(),
        effect: if tool.read_only == Some(true) { Effect::Reads } else { Effect::Executes },
    }
}

struct Proxy {
    spec: ToolSpec,
    registration: u64,
    all: Arc<ClientTools>,
    clock: Arc<dyn Clock>,
}

impl Tool for Proxy {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn outline(&self, _: &Arguments, _: &Path) -> Outline {
        Outline { title: self.spec.name.clone(), ..Outline::default() }
    }

    fn call<'a>(&'a self, arguments: Arguments, context: ToolContext) -> BoxFuture<'a, ToolOutput> {
        async move {
            let call_id = short_id(self.clock.as_ref(), "call");
            let Some((answer, calls)) = self.begin(&call_id) else { return self.gone() };
            let call = ClientToolCall {
                call_id: call_id.clone(),
                session_id: Some(context.session_id.clone()),
                tool_call_id: Some(context.tool_call_id.clone()),
                name: Some(self.spec.name.clone()),
                arguments: Some(arguments),
                cancelled: None,
            };
            if calls.try_send(text(&call)).is_err() {
                self.all.state().calls.remove(&call_id);
                return ToolOutput::error(format!(
                    "The client that runs {} does not take its calls; they pile up.",
                    self.spec.name
                ));
            }
            let output = tokio::select! {
                output = answer => return output.unwrap_or_else(|_| self.gone()),
                () = context.cancel.cancelled() => ToolOutput::error("Aborted by the user."),
                () = tokio::time::sleep(ANSWER_TIME) => ToolOutput::error(format!(
                    "The client that runs {} did not answer in {} minutes.",
                    self.spec.name,
                    ANSWER_TIME.as_secs() / 60
                )),
            };
            self.all.state().calls.remove(&call_id);
            let cancelled = ClientToolCall { call_id, cancelled: Some(true), ..ClientToolCall::default() };
            let _ = calls.try_send(text(&cancelled));
            output
        }
        .boxed()
    }
}

impl Proxy {
    fn begin(&self, call_id: &str) -> Option<(oneshot::Receiver<ToolOutput>, mpsc::Sender<Arc<str>>)> {
        let mut state = self.all.state();
        let calls = state.registrations.iter().find(|r| r.id == self.registration)?.calls.clone();
        let (answer, answered) = oneshot::channel();
        state.calls.insert(call_id.to_owned(), Call { registration: self.registration, answer });
        Some((answered, calls))
    }

    fn gone(&self) -> ToolOutput {
        ToolOutput::error(format!("The client that runs {} is gone.", self.spec.name))
    }
}

fn text(call: &ClientToolCall) -> Arc<str> {
    serde_json::to_string(call).unwrap_or_default().into()
}
