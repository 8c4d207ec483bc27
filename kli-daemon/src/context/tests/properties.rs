//! Random branches, damage included: what is sent is valid, and a compaction loses nothing.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::fixtures::{Branch, model, valid};
use crate::context::estimate::Kept;
use crate::context::{Window, assemble, find_cut, transcript};
use kli_protocol::api::ModelInfo;
use kli_protocol::record::{Body, Compaction, Message, Record};
use std::sync::Arc;

/// Few ids, so that they meet.
fn call_id() -> impl Strategy<Value = String> {
    prop_oneof![Just("c1"), Just("c2"), Just("c3"), Just("")].prop_map(str::to_owned)
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => (0..100_000u32).prop_map(|n| format!("T{n}T")),
        1 => Just(String::new()),
        1 => Just(" \n".to_owned()),
        2 => (0..100_000u32, 50..400usize).prop_map(|(n, len)| format!("T{n}T{}", " long".repeat(len))),
    ]
}

fn block() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => text().prop_map(|t| json!({"type":"text","text":t})),
        1 => Just(json!({"type":"thinking","thinking":"hm","thinkingSignature":"sig"})),
        1 => Just(json!({"type":"thinking","thinking":"hm"})),
        1 => Just(json!({"type":"thinking","thinking":"","thinkingSignature":"x","redacted":true})),
        1 => Just(json!({"type":"image","data":"QUJD","mimeType":"image/png"})),
        1 => Just(json!({"type":"alien"})),
        1 => Just(json!("bare")),
        4 => (call_id(), prop_oneof![Just("bash"), Just("no such"), Just("")])
            .prop_map(|(id, name)| json!({"type":"toolCall","id":id,"name":name,"arguments":{"path":"a"}})),
    ]
}

fn content() -> impl Strategy<Value = Value> {
    prop_oneof![
        2 => text().prop_map(Value::String),
        6 => prop::collection::vec(block(), 0..4).prop_map(Value::Array),
        1 => Just(Value::Null),
    ]
}

fn entry_id() -> impl Strategy<Value = String> {
    prop_oneof![8 => (0..40u32).prop_map(|n| format!("e{n}")), 1 => Just("gone".to_owned())]
}

fn record() -> impl Strategy<Value = Value> {
    let stop =
        prop_oneof![Just("stop"), Just("toolUse"), Just("toolUse"), Just("length"), Just("error"), Just("aborted")];
    prop_oneof![
        6 => content().prop_map(|c| json!({"type":"message","message":{"role":"user","content":c}})),
        8 => (content(), stop, prop_oneof![Just("m"), Just("other")]).prop_map(|(c, stop, model)| json!({"type":"message","message":
            {"role":"assistant","content":c,"stopReason":stop,"provider":"p","model":model,"usage":{"input":5,"output":5}}})),
        10 => (call_id(), content(), any::<bool>()).prop_map(|(id, c, e)| json!({"type":"message","message":
            {"role":"toolResult","toolCallId":id,"toolName":"bash","content":c,"isError":e}})),
        1 => Just(json!({"type":"message","message":{"role":"bashExecution","command":"ls","output":"x"}})),
        1 => Just(json!({"type":"message","message":{"role":"system","content":"x"}})),
        1 => content().prop_map(|c| json!({"type":"custom_message","customType":"x","content":c})),
        1 => text().prop_map(|t| json!({"type":"branch_summary","summary":t,"fromId":"e1"})),
        1 => (text(), entry_id()).prop_map(|(t, kept)| json!({"type":"compaction","summary":t,"firstKeptEntryId":kept})),
        1 => (entry_id(), content()).prop_map(|(t, c)| json!({"type":"context_edit","targetId":t,"replacement":{"content":c}})),
        1 => entry_id().prop_map(|t| json!({"type":"context_edit","targetId":t,"replacement":null})),
        1 => Just(json!({"type":"label","targetId":"e1","label":"l"})),
        1 => Just(json!({"type":"alien","content":"x"})),
    ]
}

fn branch() -> impl Strategy<Value = Branch> {
    prop::collection::vec(record(), 0..40).prop_map(|records| {
        let lines: Vec<String> = records.iter().map(Value::to_string).collect();
        Branch::linear(&lines.iter().map(String::as_str).collect::<Vec<_>>())
    })
}

fn requests(window: &Window) -> Result<(), TestCaseError> {
    let blind = ModelInfo { model_id: "blind".into(), input: vec!["text".into()], context_window: 500, ..model() };
    for model in [model(), blind] {
        let got = assemble(window, &model);
        valid(&got.messages).map_err(TestCaseError::fail)?;
        prop_assert_eq!(got.messages.len(), got.sizes.len());
        prop_assert_eq!(&got.messages, &assemble(window, &model).messages);
    }
    Ok(())
}

/// The words that tell messages apart.
fn marks(text: &str) -> Vec<String> {
    text.replace("\\n", " ")
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|w| w.len() > 2 && w.starts_with('T') && w.ends_with('T'))
        .map(str::to_owned)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_is_valid(branch in branch()) {
        requests(&branch.window())?;
        // So it is from every leaf, and with whatever boundary.
        for end in 0..branch.items.len() {
            let shorter = Branch { items: branch.items[..end].to_vec() };
            requests(&shorter.window())?;
        }
    }

    #[test]
    fn a_compaction_loses_nothing(branch in branch(), about in 1..2_000u64, most in 1..4_000u64) {
        let mut window = branch.window();
        for round in 0..3 {
            let Some(cut) = find_cut(&window, Kept { about, most }) else { break };
            let (gone, kept) = window.items().split_at(cut.at);
            prop_assert_eq!(&kept[0].id, &cut.first_kept);
            prop_assert!(!matches!(kept[0].message().map(|m| &**m), Some(Message::ToolResult(_)) | None));
            let before: Vec<String> = assemble(&window, &model()).messages.iter()
                .flat_map(|m| marks(&serde_json::to_string(m).unwrap())).collect();
            let given: Vec<String> = transcript::messages(gone).iter().chain(window.summary_text().map(str::to_owned).iter())
                .flat_map(|text| marks(text)).collect();
            let request = transcript::request_before(window.items(), cut.at, window.summary_text());
            let newest = window.items().iter().rev().find(|i| i.is_prompt()).and_then(|i| i.message()).cloned();
            let summary = transcript::compose(&format!("round {round}"), &Default::default(), request.as_deref());
            let compaction = Compaction { summary, first_kept_entry_id: Some(cut.first_kept), ..Compaction::default() };
            let id = format!("k{round}");
            window.push(Arc::new(Record::new(id.as_str(), None, "", Body::Compaction(compaction)).into()));
            requests(&window)?;
            let sent: Vec<String> = assemble(&window, &model()).messages.iter()
                .map(|m| serde_json::to_string(m).unwrap()).collect();
            let after: Vec<String> = sent.iter().flat_map(|m| marks(m)).collect();
            for mark in &before {
                prop_assert!(given.contains(mark) || after.contains(mark), "{} is gone", mark);
            }
            if let Some(Message::User(prompt)) = newest.as_deref() {
                let text = transcript::plain(&prompt.content);
                let mark = marks(&text);
                let texts: Vec<String> = assemble(&window, &model()).messages.iter().filter_map(|m| match &**m {
                    Message::User(m) => Some(transcript::plain(&m.content)),
                    _ => None,
                }).collect();
                prop_assert!(mark.is_empty() || texts.iter().any(|t| t.contains(text.trim())), "{:?} in {:?}", text, texts);
                // Once, unless the branch says it more often.
                if let [mark] = &mark[..] && before.iter().filter(|m| *m == mark).count() == 1 {
                    prop_assert_eq!(after.iter().filter(|m| *m == mark).count(), 1, "{} in {:?}", mark, texts);
                }
            }
        }
    }
}
