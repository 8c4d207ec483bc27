//! Recorded Chat Completions streams that peers fell over, played to the real daemon: what comes out of each.
//! The recordings lie beside the repository; the dialects' own tests hold such streams for good.

use kli_tests::{ModelServer, Reply, Session, Setup, fixtures, text_of};
use serde_json::json;

/// What must come of a stream.
enum Outcome {
    /// The final text.
    Text(&'static str),
    /// Tool calls of the first message: name, arguments.
    Calls(&'static [(&'static str, &'static str)]),
    /// The run ends with this stop reason after one request.
    Stop(&'static str),
}

use Outcome::{Calls, Stop, Text};

const CASES: &[(&str, Outcome)] = &[
    ("F075-no-index", Calls(&[("read", r#"{"path":"a"}"#), ("read", r#"{"path":"b"}"#)])),
    ("F077-name-every-chunk", Calls(&[("read", r#"{"path":"a"}"#)])),
    ("F078-interleaved-no-id", Calls(&[("read", r#"{"path":"a"}"#), ("bash", r#"{"command":"ls"}"#)])),
    ("F085-id-arrives-late", Calls(&[("read", "")])),
    ("F080-stop-with-calls", Calls(&[("", "")])),
    ("F082-two-choices", Calls(&[("", "")])),
    ("F083-unknown-tool-bad-json", Calls(&[("", ""), ("", ""), ("", "")])),
    ("F074-empty-args", Calls(&[("", "{}")])),
    ("F074b-null-args", Calls(&[("", "{}")])),
    ("F086-no-space-crlf-comments", Text("Hello")),
    ("F088-multi-data-lines", Text("hi")),
    ("F089-no-done", Text("")),
    ("F094-usage-only-last", Text("")),
    ("F094b-usage-null-everywhere", Text("")),
    ("F097-null-choices-content", Text("hi")),
    ("F096-content-filter", Stop("refused")),
    ("F110-reasoning-content", Calls(&[("", "")])),
];

#[test]
fn streams_that_peers_failed_on() {
    let mut failed = Vec::new();
    for (name, outcome) in CASES {
        let Some(path) = fixtures::shared(&format!("failures/{name}.sse")) else { return };
        let bytes = std::fs::read(path).unwrap();
        // Whole, and byte by byte: where the stream is cut makes no difference.
        for whole in [true, false] {
            if let Err(panic) = std::panic::catch_unwind(|| check(&bytes, whole, outcome)) {
                let why = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                failed.push(format!("{name} ({}): {why}", if whole { "whole" } else { "in bytes" }));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

fn check(bytes: &[u8], whole: bool, outcome: &Outcome) {
    let reply = if whole {
        Reply::sse(bytes)
    } else {
        Reply::steps(bytes.chunks(1).map(|byte| kli_tests::model::Step::Raw(byte.to_vec())))
    };
    let server = ModelServer::with([reply]);
    let daemon = Setup::new().model(&server).start();
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(&daemon, work_dir.path());
    let result = session.run("go");
    match outcome {
        Text(text) => {
            assert_eq!(result["stopReason"], "done", "{result}");
            assert!(text.is_empty() || result["text"] == *text, "{result}");
            assert_eq!(server.requests().len(), 1);
        }
        Stop(stop) => {
            assert_eq!(result["stopReason"], *stop, "{result}");
            assert_eq!(server.requests().len(), 1, "it is not tried again");
        }
        Calls(calls) => {
            assert_eq!(result["stopReason"], "done", "{result}");
            let messages = session.messages();
            let blocks = messages[1]["content"].as_array().unwrap();
            let found: Vec<_> = blocks.iter().filter(|block| block["type"] == "toolCall").collect();
            assert_eq!(found.len(), calls.len(), "{blocks:?}");
            for (block, (name, arguments)) in found.iter().zip(*calls) {
                assert!(name.is_empty() || block["name"] == *name, "{block}");
                assert!(arguments.is_empty() || same(&block["arguments"], arguments), "{block}");
            }
            let results = messages.iter().filter(|m| m["role"] == "toolResult").count();
            assert_eq!(results, calls.len());
            assert_eq!(text_of(messages.last().unwrap()), "done", "the loop went on");
        }
    }
    server.clear();
    session.ask("next");
    server.assert_valid();
}

fn same(arguments: &serde_json::Value, json: &str) -> bool {
    serde_json::from_str(json).is_ok_and(|expected: serde_json::Value| *arguments == expected)
}

/// A stream that brings nothing more is ended by an abort at once, whatever comments keep it alive.
#[test]
fn a_stall_can_be_aborted() {
    let gate = kli_tests::Gate::new();
    let chunk = json!({ "choices": [{ "index": 0, "delta": { "content": "one" } }] });
    let server = ModelServer::with([Reply::steps([
        kli_tests::model::Step::Raw(format!("data: {chunk}\n\n: ping\n\n").into_bytes()),
        kli_tests::model::Step::Hold(gate.clone()),
    ])]);
    let daemon = Setup::new().model(&server).start();
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(&daemon, work_dir.path());
    session.call("prompt", json!({ "text": "go" }));
    gate.reached();
    let (_, took) = kli_tests::timed(|| session.call("abort", json!({})));
    assert!(took.as_millis() < 1200, "{took:?}");
    gate.open();
    session.ask("next");
    server.assert_valid();
}
