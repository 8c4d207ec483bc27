//! A server's tool, to the agent one like any other.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use kli_protocol::record::{Block, ImageBlock};
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ContentBlock, ResourceContents, ServerResult,
};
use rmcp::service::PeerRequestOptions;
use serde_json::{Value, json};

use super::names;
use super::server::Shared;
use super::watched::LONGEST;
use crate::text::{self, Limits};
use crate::tool::{Arguments, Effect, Outline, Tool, ToolContext, ToolOutput, ToolSpec};

/// How long a server may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(600);
/// Bytes of a description: what is longer costs every request.
const DESCRIPTION: usize = 8 * 1024;

pub(super) struct McpTool {
    spec: ToolSpec,
    /// As the server calls it.
    name: String,
    server: Arc<Shared>,
}

impl McpTool {
    pub(super) fn new(tool: rmcp::model::Tool, server: Arc<Shared>) -> McpTool {
        let description = tool.description.as_deref().or(tool.title.as_deref()).unwrap_or_default();
        let mut parameters = Value::Object(tool.input_schema.as_ref().clone());
        // Providers refuse a schema that is no object's.
        if parameters.get("type").and_then(Value::as_str) != Some("object") {
            parameters = json!({ "type": "object" });
        }
        let reads = tool.annotations.as_ref().and_then(|hints| hints.read_only_hint) == Some(true);
        let spec = ToolSpec {
            name: names::name(&server.name, &tool.name),
            description: text::clip_bytes(description, description.len().min(DESCRIPTION)).to_owned(),
            parameters,
            effect: if reads { Effect::Reads } else { Effect::Executes },
        };
        McpTool { spec, name: tool.name.into_owned(), server }
    }
}

impl Tool for McpTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn outline(&self, _: &Arguments, _: &Path) -> Outline {
        let title = text::one_line(&format!("{} {}", self.server.name, self.name), 200);
        Outline { title, ..Outline::default() }
    }

    fn call<'a>(&'a self, arguments: Arguments, context: ToolContext) -> BoxFuture<'a, ToolOutput> {
        async move {
            let server = &self.server.name;
            let peer = match self.server.peer() {
                Ok(peer) => peer,
                Err(reason) => {
                    return ToolOutput::error(format!("The MCP server {server} is not available: {reason}."));
                }
            };
            let params = CallToolRequestParams::new(self.name.clone()).with_arguments(arguments);
            let sent = peer
                .send_cancellable_request(CallToolRequest::new(params).into(), PeerRequestOptions::no_options())
                .await;
            let mut call = match sent {
                Ok(call) => call,
                Err(error) => return ToolOutput::error(format!("The MCP server {server} takes no calls: {error}.")),
            };
            let (reason, output) = tokio::select! {
                // It may be another call's: nobody can tell.
                () = self.server.dropped.notified() => ("dropped", ToolOutput::error(format!(
                    "The MCP server {server} sent a message of more than {}, which was dropped. Ask it for less.",
                    text::size(LONGEST as u64)
                ))),
                answer = &mut call.rx => return self.output(answer.ok(), context.images),
                () = context.cancel.cancelled() => ("aborted", ToolOutput::error("Aborted by the user.")),
                () = tokio::time::sleep(ANSWER_TIME) => ("timeout", ToolOutput::error(format!(
                    "The MCP server {server} did not answer in {} minutes.",
                    ANSWER_TIME.as_secs() / 60
                ))),
            };
            // Whoever does not take calls does not take this either: nobody waits for it.
            tokio::spawn(call.cancel(Some(reason.to_owned())));
            output
        }
        .boxed()
    }
}

impl McpTool {
    fn output(&self, answer: Option<Result<ServerResult, rmcp::ServiceError>>, images: bool) -> ToolOutput {
        let server = &self.server.name;
        match answer {
            Some(Ok(ServerResult::CallToolResult(result))) => output(result, images),
            // Not quite what a result should be; what can be read of it is.
            Some(Ok(other)) => match serde_json::to_value(other).ok().and_then(lenient) {
                Some(result) => output(result, images),
                None => ToolOutput::error(format!("The MCP server {server} answered with what is no result.")),
            },
            Some(Err(rmcp::ServiceError::McpError(error))) => ToolOutput::error(error.message.into_owned()),
            Some(Err(rmcp::ServiceError::TransportClosed)) | None => {
                ToolOutput::error(format!("The MCP server {server} ended before it answered."))
            }
            Some(Err(error)) => ToolOutput::error(format!("The call to the MCP server {server} failed: {error}.")),
        }
    }
}

/// A result some of whose content is of no kind that is known.
fn lenient(mut answer: Value) -> Option<CallToolResult> {
    let fields = answer.as_object_mut()?;
    let content = match fields.remove("content") {
        None => vec![],
        Some(Value::Array(content)) => content,
        Some(Value::String(text)) => vec![json!({ "type": "text", "text": text })],
        Some(_) => return None,
    };
    let known = |block: Value| match serde_json::from_value(block) {
        Ok(block) => block,
        Err(_) => ContentBlock::text("[Content of a kind that this version does not know.]"),
    };
    let mut result = CallToolResult::success(content.into_iter().map(known).collect());
    result.structured_content = fields.remove("structuredContent");
    result.is_error = fields.get("isError").and_then(Value::as_bool);
    Some(result)
}

fn output(result: CallToolResult, images: bool) -> ToolOutput {
    let mut content: Vec<Block> = vec![];
    // All texts together are held to what one call may bring.
    let mut room = Limits::OUTPUT;
    let mut add = |content: &mut Vec<Block>, text: &str| {
        let cut = text::head(text, room);
        room = Limits { lines: room.lines.saturating_sub(cut.lines), bytes: room.bytes.saturating_sub(cut.text.len()) };
        let shown = match cut.by {
            None => text.to_owned(),
            Some(_) => format!("{}\n[… cut: {} of {} bytes …]", cut.text, cut.text.len(), text.len()),
        };
        if !shown.is_empty() {
            content.push(Block::text(shown));
        }
    };
    for block in result.content {
        match block {
            ContentBlock::Text(part) => add(&mut content, &part.text),
            ContentBlock::Image(image) if images => {
                content.push(Block::Image(ImageBlock { data: image.data, mime_type: image.mime_type }));
            }
            ContentBlock::Image(image) => add(
                &mut content,
                &format!("[An image ({}): the model in use takes no images, so it cannot be shown.]", image.mime_type),
            ),
            ContentBlock::Audio(audio) => {
                add(&mut content, &format!("[A sound ({}), which cannot be shown.]", audio.mime_type));
            }
            ContentBlock::Resource(part) => match part.resource {
                ResourceContents::TextResourceContents { uri, text, .. } => {
                    add(&mut content, &format!("{uri}\n{text}"))
                }
                ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => add(
                    &mut content,
                    &format!(
                        "[{uri}: {} of {}, not shown.]",
                        text::size(blob.len() as u64 / 4 * 3),
                        mime_type.as_deref().unwrap_or("binary data")
                    ),
                ),
                _ => {}
            },
            ContentBlock::ResourceLink(link) => add(&mut content, &format!("{}: {}", link.name, link.uri)),
            _ => add(&mut content, "[Content of a kind that this version does not know.]"),
        }
    }
    if let (true, Some(structured)) = (content.is_empty(), &result.structured_content) {
        add(&mut content, &structured.to_string());
    }
    ToolOutput { content, details: result.structured_content, is_error: result.is_error == Some(true) }
}
