use std::collections::BTreeMap;

use kli_protocol::api::ToolDescription;
use kli_protocol::record::{AssistantMessage, Message};
use serde_json::{Value, json};

use super::plan::{Plan, calls_for, plan};
use super::*;
use crate::clock::SystemClock;

fn request(messages: Value) -> Request {
    let tool = |name: &str| ToolDescription {
        name: name.into(),
        description: String::new(),
        parameters: json!({ "type": "object" }),
    };
    let messages: Vec<Message> = serde_json::from_value(messages).unwrap();
    Request {
        model: Arc::new(model()),
        system_prompt: "".into(),
        tools: ["read", "ls", "grep", "bash"].map(tool).to_vec().into(),
        messages: messages.into_iter().map(Arc::new).collect(),
        options: BTreeMap::new(),
        max_tokens: None,
        cache_key: String::new(),
    }
}

#[test]
fn prompts_ask_for_tools() {
    fn check(prompt: &str, expected: &[(&str, &str)]) {
        let calls: Vec<(&str, String)> = calls_for(prompt)
            .into_iter()
            .map(|call| {
                (call.name, call.arguments.as_object().unwrap().values().next().unwrap().as_str().unwrap().to_owned())
            })
            .collect();
        let expected: Vec<(&str, String)> = expected.iter().map(|(n, a)| (*n, (*a).to_owned())).collect();
        assert_eq!(calls, expected, "{prompt}");
    }
    check("read hello.txt", &[("read", "hello.txt")]);
    check("What does README.md say?", &[("read", "README.md")]);
    check("Compare src/main.rs, and \"Cargo.toml\".", &[("read", "src/main.rs")]);
    check("read \"Cargo.toml\" please", &[("read", "Cargo.toml")]);
    check("read `Cargo.toml`", &[("read", "Cargo.toml")]);
    check("read LICENSE and `git status`", &[("read", "LICENSE"), ("bash", "git status")]);
    check("list the files", &[("ls", ".")]);
    check("ls", &[("ls", ".")]);
    check("ls src/", &[("ls", "src/")]);
    check("list the directory src", &[("ls", "src")]);
    check("what is in this directory?", &[("ls", ".")]);
    check("search for `fn main`", &[("grep", "fn main")]);
    check("grep TODO", &[("grep", "TODO")]);
    check("find \"unsafe\" in the code", &[("grep", "unsafe")]);
    check("run `cargo test`", &[("bash", "cargo test")]);
    check("`sleep 30`", &[("bash", "sleep 30")]);
    check("read a.txt, read b.txt and list", &[("read", "a.txt"), ("read", "b.txt"), ("ls", ".")]);
    check("read hello.txt. Then read hello.txt again", &[("read", "hello.txt")]);
    for idle in [
        "second question",
        "second question, edited",
        "and now?",
        "again",
        "asked in the fork",
        "",
        "e.g. this",
        "version 3.14",
        "see https://example.com/a.html",
        "mail me@example.com",
        "and/or",
        "asked in the source later",
        "what next...",
    ] {
        check(idle, &[]);
    }
}

#[test]
fn it_answers_after_tools() {
    let call = json!({ "type": "toolCall", "id": "c1", "name": "read", "arguments": { "path": "hello.txt" } });
    let messages = json!([
        { "role": "user", "content": "read hello.txt" },
        { "role": "assistant", "content": [call] },
        { "role": "toolResult", "toolCallId": "c1", "toolName": "read", "content": [{ "type": "text", "text": "marker-4711\n" }] }
    ]);
    let Plan { text, calls } = plan(&request(messages.clone()));
    assert!(calls.is_empty() && text.contains("> marker-4711") && text.contains("not a language model"), "{text}");
    let mut next = messages;
    next.as_array_mut().unwrap().push(json!({ "role": "assistant", "content": "done" }));
    next.as_array_mut().unwrap().push(json!({ "role": "user", "content": "hi" }));
    let Plan { text, calls } = plan(&request(next));
    assert!(calls.is_empty() && text.contains("\"hi\"") && text.contains("not a language model"), "{text}");
}

#[test]
fn it_asks_only_for_tools_that_it_has() {
    let mut request = request(json!([{ "role": "user", "content": "read a.txt and run `ls`" }]));
    request.tools = request.tools.iter().filter(|tool| tool.name == "read").cloned().collect();
    assert_eq!(plan(&request).calls.len(), 1);
}

#[test]
fn summaries_are_asked_for_in_words() {
    fn check(prompt: &str, tools: bool, expected: bool) {
        let mut request = request(json!([{ "role": "user", "content": "x" }, { "role": "user", "content": prompt }]));
        if !tools {
            request.tools = Arc::new([]);
        }
        assert_eq!(summary::summarise(&request).is_some(), expected, "{prompt}");
    }
    check("summarize", true, true);
    check("Write a summary of the conversation so far; keep names such as main.rs.", true, true);
    check("summarize README.md", true, false);
    check("read README.md and summarize it", true, false);
    check("The conversation before this point was compacted.\n<summary>\nx\n</summary>", true, false);
    check("Below is a session. Please summarise it.", false, true);
    check("hello", false, false);
}

#[test]
fn summaries_are_extracts() {
    let messages = json!([
        { "role": "user", "content": "read hello.txt" },
        { "role": "assistant", "content": "It says marker-4711." },
        { "role": "user", "content": "Summarize the conversation so far." }
    ]);
    let Plan { text, calls } = plan(&request(messages));
    assert!(calls.is_empty() && text.contains("User: read hello.txt") && text.contains("marker-4711"), "{text}");
    let conversation = "[User]: please build it\n".repeat(500);
    let one = format!(
        "Summarize this.\n<previous-summary>\nfact 17\n</previous-summary>\n<conversation>\n{conversation}</conversation>"
    );
    let Plan { text, .. } = plan(&request(json!([{ "role": "user", "content": one }])));
    assert!(text.contains("fact 17") && text.contains("please build it") && text.len() < 4_000, "{text}");
    let compacted = json!([
        { "role": "user", "content": "The conversation before this point was compacted.\n<summary>\nx\n</summary>" },
        { "role": "user", "content": "read a.txt" }
    ]);
    assert_eq!(plan(&request(compacted)).calls.len(), 1);
}

async fn play(request: Request, cancel: CancellationToken) -> Vec<StreamEvent> {
    Offline::new(Arc::new(SystemClock)).stream(request, cancel).collect().await
}

fn end(events: &[StreamEvent]) -> &AssistantMessage {
    match events.last() {
        Some(StreamEvent::Done(message) | StreamEvent::Failed { partial: message, .. }) => message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn it_streams_word_by_word() {
    let events = play(request(json!([{ "role": "user", "content": "hello" }])), CancellationToken::new()).await;
    let words = events.iter().filter(|event| matches!(event, StreamEvent::Text { .. })).count();
    assert!(words > 20 && events.first() == Some(&StreamEvent::Started));
    let message = end(&events);
    assert_eq!(
        (message.provider.as_str(), message.model.as_str(), message.stop_reason),
        ("demo", "offline", StopReason::Stop)
    );
    assert!(message.usage.input > 0 && message.usage.output > 0);
    let events =
        play(request(json!([{ "role": "user", "content": "read a.txt and b.txt" }])), CancellationToken::new()).await;
    let message = end(&events);
    assert_eq!((message.content.tool_calls().count(), message.stop_reason), (2, StopReason::ToolUse));
}

#[tokio::test(start_paused = true)]
async fn it_stops_when_told() {
    let cancel = CancellationToken::new();
    let mut stream = Offline::new(Arc::new(SystemClock))
        .stream(request(json!([{ "role": "user", "content": "hello" }])), cancel.clone());
    let mut events = Vec::new();
    while let Some(event) = stream.next().await {
        events.push(event);
        if events.len() == 5 {
            cancel.cancel();
        }
    }
    assert!(matches!(events.last(), Some(StreamEvent::Failed { .. })) && events.len() < 9);
    assert_eq!(end(&events).stop_reason, StopReason::Aborted);
}
