//! All four formats against a server that others wrote. Skipped unless `KLI_MOCK_URL` names one:
//!
//! ```text
//! npm install @copilotkit/aimock
//! npx aimock -p 4010 -f kli-daemon/src/provider/http/tests/aimock.json &
//! KLI_MOCK_URL=http://127.0.0.1:4010 cargo test -p kli-daemon --lib independent
//! ```
//!
//! `KLI_LLAMA_URL` names a llama.cpp server with a window of 2,048 tokens, for a real if very small model.

use kli_protocol::api::ToolDescription;
use kli_protocol::record::{Content, ToolResultMessage};
use serde_json::json;

use super::*;

fn providers() -> Vec<(Api, HttpProvider)> {
    providers_at("KLI_MOCK_URL")
}

fn providers_at(variable: &str) -> Vec<(Api, HttpProvider)> {
    let Ok(url) = std::env::var(variable) else {
        eprintln!("skipped: {variable} is not set");
        return Vec::new();
    };
    let at = |api: Api| match api {
        Api::OpenaiChat | Api::OpenaiResponses => format!("{url}/v1"),
        Api::Anthropic => url.clone(),
        Api::Google => format!("{url}/v1beta"),
    };
    Api::ALL
        .into_iter()
        .map(|api| {
            let key = KeySource::env("K", Some("sk-test".into()));
            let endpoint =
                Endpoint { api, base_url: at(api), key, headers: BTreeMap::new(), timeouts: Timeouts::default() };
            (api, HttpProvider::new(endpoint, Clients::new(), Arc::new(SystemClock)))
        })
        .collect()
}

fn ask(messages: Vec<Message>) -> Request {
    let model = ModelInfo {
        provider: "mock".into(),
        model_id: "gpt-5".into(),
        context_window: 100_000,
        max_output: 4_096,
        reasoning: true,
        input: vec!["text".into(), "image".into()],
        ..ModelInfo::default()
    };
    Request {
        model: Arc::new(model),
        system_prompt: "Be brief.".into(),
        tools: Arc::new([ToolDescription {
            name: "read".into(),
            description: "Reads a file.".into(),
            parameters: json!({ "type": "object", "properties": { "path": { "type": "string" } } }),
        }]),
        messages: messages.into_iter().map(Arc::new).collect(),
        options: BTreeMap::new(),
        max_tokens: None,
        cache_key: "s".into(),
    }
}

fn user(content: impl Into<Content>) -> Message {
    Message::User(UserMessage { content: content.into(), ..UserMessage::default() })
}

async fn answer(provider: &HttpProvider, request: Request) -> Result<AssistantMessage, Failure> {
    let mut events: Vec<StreamEvent> = provider.stream(request, CancellationToken::new()).collect().await;
    match events.pop() {
        Some(StreamEvent::Done(message)) => Ok(*message),
        Some(StreamEvent::Failed { failure, .. }) => Err(failure),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_conversation_with_parallel_tools_and_thinking() {
    for (api, provider) in providers() {
        let first = answer(&provider, ask(vec![user("look at both")])).await.unwrap();
        let paths: Vec<_> = first.content.tool_calls().map(|call| call.arguments["path"].clone()).collect();
        assert_eq!(paths, ["a.txt", "b \"q\".txt"], "{}", api.name());
        assert_eq!(
            (first.content.text().as_str(), first.stop_reason),
            ("I look.", StopReason::ToolUse),
            "{}",
            api.name()
        );
        let thought = first
            .content
            .blocks()
            .iter()
            .any(|b| matches!(b, kli_protocol::record::Block::Thinking(t) if t.thinking.contains("two files")));
        assert!(thought, "{}: {first:?}", api.name());
        let mut messages = vec![user("look at both"), Message::Assistant(first.clone())];
        messages.extend(first.content.tool_calls().map(|call| {
            Message::ToolResult(ToolResultMessage {
                tool_call_id: call.id.clone(),
                tool_name: call.name.clone(),
                content: "hello".into(),
                ..ToolResultMessage::default()
            })
        }));
        let second = answer(&provider, ask(messages)).await.unwrap();
        assert_eq!(second.content.text(), "Both say hello 你好.", "{}", api.name());
    }
}

#[tokio::test]
async fn a_picture() {
    for (api, provider) in providers() {
        let content = json!([{ "type": "text", "text": "what is this" }, { "type": "image", "data": "aGk=", "mimeType": "image/png" }]);
        let content: Content = serde_json::from_value(content).unwrap();
        let message = answer(&provider, ask(vec![user(content)])).await.unwrap();
        assert_eq!(message.content.text(), "A picture.", "{}", api.name());
    }
}

#[tokio::test]
async fn errors() {
    for (api, provider) in providers() {
        for (prompt, kind, retryable) in
            [("too fast", RunErrorKind::RateLimited, true), ("too long", RunErrorKind::ContextOverflow, false)]
        {
            let failure = answer(&provider, ask(vec![user(prompt)])).await.unwrap_err();
            assert_eq!((failure.kind, failure.retryable), (kind, retryable), "{}: {}", api.name(), failure.message);
        }
    }
}

#[tokio::test]
async fn a_real_small_model() {
    for (api, provider) in providers_at("KLI_LLAMA_URL").into_iter().filter(|(api, _)| *api != Api::Google) {
        let plain = |prompt: String| Request { tools: Arc::new([]), max_tokens: Some(24), ..ask(vec![user(prompt)]) };
        let message = answer(&provider, plain("Say hello.".into())).await.unwrap();
        assert!(!message.content.is_blank() && message.usage.output > 0, "{}: {message:?}", api.name());
        let failure = answer(&provider, plain("word ".repeat(4_000))).await.unwrap_err();
        assert_eq!(failure.kind, RunErrorKind::ContextOverflow, "{}: {}", api.name(), failure.message);
    }
}
