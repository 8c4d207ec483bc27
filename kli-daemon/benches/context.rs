//! How near the token estimates come to a real tokenizer, and what building a context costs.
//!
//! `cargo bench -p kli-daemon --bench context`. Ends with status 1 when an estimate is farther off than 15 %, or a
//! context of a session of weeks takes a millisecond.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

#[path = "../src/context/tests/samples.rs"]
mod samples;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kli_daemon::context::{Item, Window, assemble, estimate};
use kli_protocol::api::ModelInfo;
use kli_protocol::record::Record;
use serde_json::json;

const MOST_OFF: f64 = 15.0;
const MOST_TIME: Duration = Duration::from_millis(1);
const ROUNDS: usize = 200;

fn main() {
    let estimates = estimates();
    let times = times();
    if !(estimates && times) {
        std::process::exit(1);
    }
}

fn estimates() -> bool {
    let tokenizers = [tiktoken_rs::o200k_base().unwrap(), tiktoken_rs::cl100k_base().unwrap()];
    println!("{:<14} {:>8} {:>10} {:>8} {:>12}", "text", "estimate", "o200k_base", "error", "cl100k_base");
    let mut good = true;
    for (what, text) in samples::samples() {
        let estimate = estimate::text(&text);
        let [real, older] = [0, 1].map(|n: usize| tokenizers[n].encode_ordinary(&text).len());
        let error = (estimate as f64 / real as f64 - 1.0) * 100.0;
        good &= error.abs() <= MOST_OFF;
        println!("{what:<14} {estimate:>8} {real:>10} {error:>+7.1}% {older:>12}");
    }
    good
}

fn times() -> bool {
    let model = ModelInfo { context_window: 200_000, ..ModelInfo::default() };
    println!("\n{:<52} {:>10} {:>10}", "building a context (40,000 entries, 20 compactions)", "median", "slowest");
    let (branch, lines) = session();
    let newest = branch[branch.len() - 2].clone();
    let ids: std::collections::HashSet<&str> = branch.iter().map(|item| item.id.as_str()).collect();
    let read = |items: &[Arc<Item>]| {
        let up = items.iter().rev().map(|item| Ok::<_, std::convert::Infallible>(item.clone()));
        Window::read(up, |id| ids.contains(id)).unwrap_or_else(|e| match e {})
    };
    let mut good = true;
    let mut report = |what: &str, limit: Option<Duration>, work: &mut dyn FnMut()| {
        let mut took: Vec<Duration> = (0..ROUNDS)
            .map(|_| {
                let start = Instant::now();
                work();
                start.elapsed()
            })
            .collect();
        took.sort_unstable();
        let median = took[ROUNDS / 2];
        good &= limit.is_none_or(|limit| median < limit);
        println!("{what:<52} {median:>10.1?} {:>10.1?}", took[ROUNDS - 1]);
    };
    // What a turn costs: the session keeps the window.
    let mut window = read(&branch);
    println!("({} entries count for it, {} tokens)", window.items().len(), assemble(&window, &model).tokens(0));
    report("  a turn: one entry more, the request anew", Some(MOST_TIME), &mut || {
        window.push(newest.clone());
        std::hint::black_box(assemble(&window, &model).tokens(2_000));
    });
    // Another leaf: what is kept is read again.
    report("  any leaf, entries read before", Some(MOST_TIME), &mut || {
        std::hint::black_box(assemble(&read(&branch), &model).tokens(2_000));
    });
    // From the file's own lines: parsed, cleaned, estimated.
    let kept = read(&branch).items().len();
    let lines = &lines[lines.len() - kept..];
    report("  any leaf, from the lines of the file", None, &mut || {
        let items: Vec<Arc<Item>> =
            lines.iter().map(|line| Arc::new(Item::from(serde_json::from_str::<Record>(line).unwrap()))).collect();
        std::hint::black_box(assemble(&read(&items), &model).tokens(2_000));
    });
    good
}

/// A long session: entries and their lines.
fn session() -> (Vec<Arc<Item>>, Vec<String>) {
    const ENTRIES: usize = 40_000;
    let words = "the quick brown fox reads what the daemon wrote and answers at some length ".repeat(4);
    let mut lines = Vec::with_capacity(ENTRIES);
    for n in 0..ENTRIES {
        let usage = json!({"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 0});
        let message = match n % 4 {
            0 => json!({"role": "user", "content": format!("please {words}")}),
            1 => {
                json!({"role": "assistant", "stopReason": "toolUse", "provider": "p", "model": "m", "usage": usage, "content":
                [{"type": "text", "text": words}, {"type": "toolCall", "id": format!("c{n}"), "name": "bash", "arguments": {"command": "cargo test"}}]})
            }
            2 => {
                json!({"role": "toolResult", "toolCallId": format!("c{}", n - 1), "toolName": "bash", "content": [{"type": "text", "text": format!("{words}\n{words}")}]})
            }
            _ => {
                json!({"role": "assistant", "stopReason": "stop", "provider": "p", "model": "m", "usage": usage, "content": [{"type": "text", "text": words}]})
            }
        };
        let mut record = json!({"type": "message", "message": message});
        if n % (ENTRIES / 20) == ENTRIES / 20 - 1 {
            record = json!({"type": "compaction", "summary": words, "tokensBefore": 1, "firstKeptEntryId": format!("e{}", n - 199)});
        }
        // The last compaction is some way behind the leaf.
        if n >= ENTRIES - 10 && record["type"] == "compaction" {
            record = json!({"type": "compaction", "summary": words, "tokensBefore": 1, "firstKeptEntryId": format!("e{}", n - 399)});
        }
        record["id"] = format!("e{n}").into();
        record["parentId"] = n.checked_sub(1).map(|n| format!("e{n}")).into();
        record["timestamp"] = "2026-01-01T00:00:00.000Z".into();
        lines.push(record.to_string());
    }
    let items = lines.iter().map(|line| Arc::new(Item::from(serde_json::from_str::<Record>(line).unwrap()))).collect();
    (items, lines)
}
