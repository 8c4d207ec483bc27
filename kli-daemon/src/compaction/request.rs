//! What a summariser is asked, and how its answer is taken.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::StreamExt;
use kli_protocol::api::RunErrorKind;
use kli_protocol::record::{AssistantMessage, Message, UserMessage};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Job, Summarizer};
use crate::context::settings::REASONING_EFFORT;
use crate::provider::{Failure, Provider, Request, StreamEvent};

/// Estimate of all that is asked beside the conversation.
pub(super) const OVERHEAD: u64 = 700;

/// What the summary is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It stands in for whole turns.
    History,
    /// Its end is the beginning of a turn that goes on.
    SplitTurn,
    /// It tells of a path that was left.
    Path,
    /// The same, of a path whose beginning was left out.
    EndOfPath,
}

/// The stretch that one request is about.
pub(super) struct Part {
    /// From 1.
    pub number: usize,
    pub last: bool,
    pub text: String,
}

const SYSTEM: &str = "You summarize conversations between a user and a coding agent. You do not take part in them: never answer what they ask, never go on with their work. Write the summary and nothing else.";

const HISTORY: &str = "Summarize the conversation below, so that an agent that sees only your summary and what comes after can go on with the work.";
const PATH: &str = "Summarize the conversation below: a path that was tried and then left. Tell the agent, who now goes on from before that path, what was tried on it, what came of it and what was learned.";

const FORM: &str = "Write Markdown under these headings, leaving out those with nothing to say:

## Goal
## Wishes and constraints of the user
## Decisions, with their reasons
## Done
## In progress
## Next steps
## Facts to remember

Be exact: keep names, paths, commands, numbers, error messages and whatever the user stated as fact or asked to be remembered, word for word. Leave out what no longer matters.";

const SPLIT: &str = "The conversation ends in the middle of a turn that goes on afterwards. Add a heading \"## Current turn so far\" for what was done since the user's last message; that message itself will be given beside your summary.";

pub(super) fn build(by: &Summarizer, job: &Job, part: &Part) -> Request {
    let prompt = UserMessage { content: prompt(job, part).into(), ..UserMessage::default() };
    Request {
        model: Arc::clone(&by.model),
        system_prompt: SYSTEM.into(),
        tools: Arc::from([]),
        messages: vec![Arc::new(Message::User(prompt))],
        options: options(by),
        max_tokens: Some(by.output_limit()),
        cache_key: by.cache_key.clone(),
    }
}

/// The session's, with the least reasoning that the model has: thinking would use up the room for the summary.
fn options(by: &Summarizer) -> BTreeMap<String, Value> {
    let mut options = by.options.clone();
    options.remove(REASONING_EFFORT);
    let levels = by.model.options.iter().find(|option| option.option_id == REASONING_EFFORT);
    let least =
        levels.and_then(|levels| ["off", "minimal", "low"].iter().find(|l| levels.values.iter().any(|v| v == *l)));
    if let Some(least) = least {
        options.insert(REASONING_EFFORT.to_owned(), Value::String((*least).to_owned()));
    }
    options
}

/// Begins with "Summarize the conversation", by which a scripted or offline model knows it.
fn prompt(job: &Job, part: &Part) -> String {
    let mut text = match job.kind {
        Kind::History | Kind::SplitTurn => HISTORY,
        Kind::Path | Kind::EndOfPath => PATH,
    }
    .to_owned();
    let mut add = |paragraph: &str| {
        text.push_str("\n\n");
        text.push_str(paragraph);
    };
    add(FORM);
    if job.kind == Kind::SplitTurn && part.last {
        add(SPLIT);
    }
    if job.kind == Kind::EndOfPath && part.number == 1 {
        add("The beginning of the path is left out.");
    }
    match (part.number, part.last) {
        (1, true) => {}
        (n, true) => add(&format!("This is part {n}, the last one.")),
        (n, false) => add(&format!("This is part {n}; more follow, and your summary will be carried into the next.")),
    }
    if let Some(wish) = job.instructions.map(str::trim).filter(|wish| !wish.is_empty()) {
        add(&format!("The user asks of this summary:\n{wish}"));
    }
    if let Some(earlier) = &job.earlier {
        add(&format!(
            "What came before is summarized already. Your summary takes the place of this one: carry over all of it that still matters, and bring it up to date.\n\n{}",
            fenced("earlier-summary", earlier)
        ));
    }
    add(&fenced("conversation", &part.text));
    add("Now write the summary.");
    text
}

/// The text between tags that it cannot close.
fn fenced(name: &str, text: &str) -> String {
    let text = text.replace(&format!("</{name}>"), &format!("<\\/{name}>"));
    format!("<{name}>\n{text}\n</{name}>")
}

/// The whole reply, or why there is none.
pub(super) async fn reply(
    provider: &dyn Provider,
    request: Request,
    cancel: &CancellationToken,
) -> Result<AssistantMessage, Failure> {
    let mut events = provider.stream(request, cancel.clone());
    while let Some(event) = events.next().await {
        match event {
            StreamEvent::Done(message) => return Ok(*message),
            StreamEvent::Failed { failure, .. } => return Err(failure),
            StreamEvent::Started
            | StreamEvent::Text { .. }
            | StreamEvent::Thinking { .. }
            | StreamEvent::ToolCall { .. } => {}
        }
    }
    Err(Failure {
        kind: RunErrorKind::Internal,
        message: "the reply had no end".to_owned(),
        retryable: false,
        retry_after_ms: None,
    })
}
