//! What a strict provider would refuse in a request, in its own words.

use std::collections::HashSet;

use serde_json::Value;

use super::Dialect;
use super::prompt::messages;

/// The first fault is the one that a provider would answer with.
pub fn problems(dialect: Dialect, body: &Value, headers: &[(String, String)]) -> Vec<String> {
    let mut found = Vec::new();
    if messages(body).is_empty() {
        found.push("messages: at least one message is required".to_owned());
    }
    declared_tools(body, &mut found);
    match dialect {
        Dialect::OpenAiChat => chat(body, &mut found),
        Dialect::OpenAiResponses => responses(body, &mut found),
        Dialect::Anthropic => anthropic(body, headers, &mut found),
        Dialect::Google => google(body, &mut found),
    }
    found
}

fn declared_tools(body: &Value, found: &mut Vec<String>) {
    let tools = body["tools"].as_array().map_or(&[][..], Vec::as_slice);
    let declarations = tools.iter().flat_map(|tool| match tool["functionDeclarations"].as_array() {
        Some(declarations) => declarations.iter().collect(),
        None => vec![tool],
    });
    let mut names = HashSet::new();
    for tool in declarations {
        let name = tool["function"]["name"].as_str().or(tool["name"].as_str()).unwrap_or_default();
        let legal = !name.is_empty()
            && name.len() <= 64
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
        if !legal {
            found
                .push(format!("Invalid tool name {name:?}: expected a string that matches '^[a-zA-Z0-9_-]{{1,64}}$'."));
        }
        if !names.insert(name) {
            found.push(format!("tools: Tool names must be unique. ({name})"));
        }
        let schema = ["/function/parameters", "/parameters", "/input_schema", "/parametersJsonSchema"]
            .into_iter()
            .find_map(|place| tool.pointer(place));
        if schema.is_some_and(|schema| schema["type"] != "object" || !schema["properties"].is_object()) {
            found.push(format!(
                "Invalid schema for function '{name}': schema must be of type \"object\" and have properties"
            ));
        }
    }
}

fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Text blocks must say something, wherever they are.
fn blank_blocks(at: &str, content: &Value, found: &mut Vec<String>) {
    for (k, block) in content.as_array().into_iter().flatten().enumerate() {
        let is_text = matches!(block["type"].as_str(), Some("text" | "input_text" | "output_text"));
        if is_text && is_blank(&block["text"]) {
            found.push(format!("{at}.content.{k}: text content blocks must contain non-whitespace text"));
        }
    }
}

fn is_object(arguments: &Value) -> bool {
    arguments.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok()).is_some_and(|value| value.is_object())
}

/// Chat Completions, as strict as its strictest servers: results directly behind their message, in call order.
fn chat(body: &Value, found: &mut Vec<String>) {
    if body["model"].as_str().is_none_or(str::is_empty) {
        found.push("you must provide a model parameter".to_owned());
    }
    let mut open: Vec<String> = Vec::new();
    let mut seen: HashSet<String> = HashSet::new();
    for (i, message) in messages(body).iter().enumerate() {
        let at = format!("messages.[{i}]");
        let role = message["role"].as_str().unwrap_or_default();
        blank_blocks(&at, &message["content"], found);
        if role == "tool" {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            if open.first().is_some_and(|first| first == id) {
                open.remove(0);
            } else if open.iter().any(|call| call == id) {
                found.push(format!("Invalid parameter: {at}: tool results must be in the order of their calls ({id})"));
                open.retain(|call| call != id);
            } else {
                found.push(format!("Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'. ({at}, {id})"));
            }
            if is_blank(&message["content"]) {
                found.push(format!("Invalid parameter: {at}: 'content' of a tool message must not be empty"));
            }
            continue;
        }
        unanswered(&mut open, found);
        match role {
            "system" | "developer" if is_blank(&message["content"]) => {
                found.push(format!("Invalid parameter: {at}: empty {role} message"));
            }
            "system" | "developer" => {}
            "user" if is_blank(&message["content"]) => {
                found.push(format!("Invalid parameter: {at}: user messages must have non-empty content"));
            }
            "user" => {}
            "assistant" => {
                let calls = message["tool_calls"].as_array();
                if calls.is_some_and(Vec::is_empty) {
                    found.push(format!("Invalid '{at}.tool_calls': empty array. Expected an array with minimum length 1, but got an empty array instead."));
                }
                if is_blank(&message["content"]) && calls.is_none() {
                    found.push(format!("Invalid parameter: {at}: assistant messages must have content or tool_calls"));
                }
                for call in calls.into_iter().flatten() {
                    let id = call["id"].as_str().unwrap_or_default();
                    if id.is_empty() || call["type"] != "function" || is_blank(&call["function"]["name"]) {
                        found.push(format!("Invalid '{at}.tool_calls': id, type and function are required ({call})"));
                    }
                    if !is_object(&call["function"]["arguments"]) {
                        found.push(format!("Invalid '{at}.tool_calls.function.arguments': not the JSON of an object"));
                    }
                    if !seen.insert(id.to_owned()) {
                        found.push(format!("Duplicate value for 'tool_call_id' of '{id}' in {at}"));
                    }
                    open.push(id.to_owned());
                }
            }
            other => found.push(format!("Invalid value: '{other}'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and 'developer'.")),
        }
    }
    unanswered(&mut open, found);
}

fn unanswered(open: &mut Vec<String>, found: &mut Vec<String>) {
    if !open.is_empty() {
        let ids = open.join(", ");
        found.push(format!("An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: {ids}"));
        open.clear();
    }
}

fn anthropic(body: &Value, headers: &[(String, String)], found: &mut Vec<String>) {
    if !headers.iter().any(|(name, _)| name == "anthropic-version") {
        found.push("anthropic-version: header is required".to_owned());
    }
    if body["max_tokens"].as_u64().is_none_or(|n| n == 0) {
        found.push("max_tokens: Field required".to_owned());
    }
    for block in body["system"].as_array().into_iter().flatten() {
        if is_blank(&block["text"]) {
            found.push("system: text content blocks must be non-empty".to_owned());
        }
    }
    let all = messages(body);
    if all.first().is_some_and(|first| first["role"] != "user") {
        found.push("messages: first message must use the \"user\" role".to_owned());
    }
    let mut seen: HashSet<String> = HashSet::new();
    let mut open: Vec<String> = Vec::new();
    for (i, message) in all.iter().enumerate() {
        let at = format!("messages.{i}");
        let role = message["role"].as_str().unwrap_or_default();
        if !matches!(role, "user" | "assistant") {
            found.push(format!("{at}.role: Input should be 'user' or 'assistant'"));
        }
        if i > 0 && all[i - 1]["role"] == message["role"] {
            found.push(format!("{at}: roles must alternate between \"user\" and \"assistant\", but found multiple \"{role}\" roles in a row"));
        }
        if is_blank(&message["content"]) {
            found.push(format!(
                "{at}: all messages must have non-empty content except for the optional final assistant message"
            ));
        }
        blank_blocks(&at, &message["content"], found);
        let blocks = message["content"].as_array().map_or(&[][..], Vec::as_slice);
        let results: Vec<&str> = blocks
            .iter()
            .filter(|block| block["type"] == "tool_result")
            .filter_map(|block| block["tool_use_id"].as_str())
            .collect();
        for id in results.iter().filter(|id| !open.iter().any(|call| call == *id)) {
            found.push(format!("{at}.content: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` block must have a corresponding `tool_use` block in the previous message."));
        }
        let missing: Vec<&String> = open.iter().filter(|call| !results.contains(&call.as_str())).collect();
        let others_first = blocks.iter().take(results.len()).any(|block| block["type"] != "tool_result");
        if !missing.is_empty() || (!open.is_empty() && others_first) {
            found.push(format!("messages.{}: `tool_use` ids were found without `tool_result` blocks immediately after: {open:?}. Each `tool_use` block must have a corresponding `tool_result` block in the next message.", i.saturating_sub(1)));
        } else if results.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>() != open && !open.is_empty() {
            found.push(format!(
                "{at}: `tool_result` blocks must be in the order of their calls, once each: {results:?}"
            ));
        }
        open.clear();
        for (k, block) in blocks.iter().enumerate() {
            match block["type"].as_str() {
                Some("tool_use") => {
                    let id = block["id"].as_str().unwrap_or_default();
                    if id.is_empty() || !id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-')) {
                        found.push(format!(
                            "{at}.content.{k}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
                        ));
                    }
                    if !block["input"].is_object() {
                        found.push(format!("{at}.content.{k}.tool_use.input: Input should be a valid dictionary"));
                    }
                    if !seen.insert(id.to_owned()) {
                        found.push("messages: `tool_use` ids must be unique".to_owned());
                    }
                    open.push(id.to_owned());
                }
                Some("tool_result") if block["is_error"] == true => {
                    let mut inside = block["content"].as_array().into_iter().flatten();
                    if inside.any(|part| part["type"] != "text") {
                        found.push(format!(
                            "{at}.content.{k}.tool_result: all content must be type \"text\" if \"is_error\" is true"
                        ));
                    }
                }
                Some("thinking") if is_blank(&block["signature"]) => {
                    found.push(format!("{at}.content.{k}.thinking.signature: Field required"));
                }
                _ => {}
            }
        }
    }
    if !open.is_empty() {
        found.push(format!("messages.{}: `tool_use` ids were found without `tool_result` blocks immediately after: {open:?}. Each `tool_use` block must have a corresponding `tool_result` block in the next message.", all.len() - 1));
    }
    let marks = body.to_string().matches("\"cache_control\"").count();
    if marks > 4 {
        found.push(format!("A maximum of 4 blocks with cache_control may be provided. Found {marks}."));
    }
}

fn responses(body: &Value, found: &mut Vec<String>) {
    let items = messages(body);
    let mut open: Vec<String> = Vec::new();
    let mut seen: HashSet<String> = HashSet::new();
    for (i, item) in items.iter().enumerate() {
        let kind = item["type"].as_str().unwrap_or("message");
        let call_id = item["call_id"].as_str().unwrap_or_default().to_owned();
        if kind != "function_call" && kind != "function_call_output" && !open.is_empty() {
            found.push(format!("No tool output found for function call {}.", open.join(", ")));
            open.clear();
        }
        match kind {
            "message" => {
                let role = item["role"].as_str().unwrap_or_default();
                if !matches!(role, "user" | "assistant" | "system" | "developer") {
                    found.push(format!(
                        "Invalid value: '{role}'. Supported values are: 'assistant', 'system', 'developer', and 'user'."
                    ));
                }
                if is_blank(&item["content"]) {
                    found.push(format!("Invalid 'input[{i}].content': empty content"));
                }
                blank_blocks(&format!("input[{i}]"), &item["content"], found);
            }
            "function_call" => {
                if !is_object(&item["arguments"]) {
                    found.push(format!("Invalid 'input[{i}].arguments': not the JSON of an object"));
                }
                if call_id.is_empty() || !seen.insert(call_id.clone()) {
                    found.push(format!("Duplicate or missing call_id '{call_id}' in input[{i}]"));
                }
                open.push(call_id);
            }
            "function_call_output" if open.first() == Some(&call_id) => {
                open.remove(0);
            }
            "function_call_output" => {
                found.push(format!("No tool call found for function call output with call_id {call_id}."));
            }
            "reasoning" => {
                let id = item["id"].as_str().unwrap_or_default();
                let follows = items.get(i + 1).is_some_and(|next| {
                    matches!(next["type"].as_str(), Some("function_call" | "reasoning")) || next["role"] == "assistant"
                });
                if !follows {
                    found.push(format!(
                        "Item '{id}' of type 'reasoning' was provided without its required following item."
                    ));
                }
                if is_blank(&item["encrypted_content"]) && body["store"] == false {
                    found.push(format!("Item with id '{id}' not found. Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this item from your input."));
                }
            }
            "item_reference" => {
                let id = item["id"].as_str().unwrap_or_default();
                found.push(format!("Item with id '{id}' not found. Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this item from your input."));
            }
            other => found.push(format!("Invalid value: '{other}' in input[{i}].type")),
        }
    }
    if !open.is_empty() {
        found.push(format!("No tool output found for function call {}.", open.join(", ")));
    }
}

fn google(body: &Value, found: &mut Vec<String>) {
    let all = messages(body);
    let names = |content: &Value, key: &str| -> Vec<String> {
        let parts = content["parts"].as_array().map_or(&[][..], Vec::as_slice);
        parts.iter().filter_map(|part| Some(part.get(key)?["name"].as_str()?.to_owned())).collect()
    };
    let mut open: Vec<String> = Vec::new();
    for (i, content) in all.iter().enumerate() {
        let at = format!("GenerateContentRequest.contents[{i}]");
        let role = content["role"].as_str().unwrap_or_default();
        if !matches!(role, "user" | "model") {
            found.push("Please use a valid role: user, model.".to_owned());
        }
        if is_blank(&content["parts"]) {
            found.push(format!("{at}.parts: contents.parts must not be empty."));
        }
        for part in content["parts"].as_array().into_iter().flatten() {
            if part.get("text").is_some_and(is_blank) && part.get("thoughtSignature").is_none() {
                found.push(format!(
                    "{at}.parts: Unable to submit request because it must have a non-empty text parameter."
                ));
            }
            if part.get("functionCall").is_some_and(|call| call.get("args").is_some_and(|args| !args.is_object())) {
                found.push(format!("{at}.parts.function_call.args: Invalid value: expected an object"));
            }
        }
        let (calls, results) = (names(content, "functionCall"), names(content, "functionResponse"));
        if results != open {
            found.push(format!("Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn. ({at}: {open:?}, {results:?})"));
        }
        if !calls.is_empty() && (i == 0 || all[i - 1]["role"] == "model") {
            found.push("Please ensure that function call turn comes immediately after a user turn or after a function response turn.".to_owned());
        }
        open = calls;
    }
    if !open.is_empty() {
        found.push("Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A valid request has no problem; each fault is named.
    #[track_caller]
    fn check(dialect: Dialect, body: Value, expected: &str) {
        let headers = [("anthropic-version".to_owned(), "2023-06-01".to_owned())];
        let found = problems(dialect, &body, &headers);
        match expected {
            "" => assert!(found.is_empty(), "{found:?} in {body}"),
            _ => assert!(found.first().is_some_and(|first| first.contains(expected)), "{found:?} in {body}"),
        }
    }

    fn chat_of(messages: Value) -> Value {
        json!({ "model": "m1", "messages": messages })
    }

    fn call(id: &str) -> Value {
        json!({ "id": id, "type": "function", "function": { "name": "read", "arguments": "{}" } })
    }

    #[test]
    fn chat_completions() {
        let user = json!({ "role": "user", "content": "hi" });
        let calls = json!({ "role": "assistant", "content": null, "tool_calls": [call("a"), call("b")] });
        let result = |id: &str| json!({ "role": "tool", "tool_call_id": id, "content": "x" });
        let bad_arguments = json!({ "role": "assistant", "tool_calls": [{ "id": "a", "type": "function",
            "function": { "name": "read", "arguments": "[]" } }] });
        for (messages, expected) in [
            (json!([user]), ""),
            (json!([user, calls, result("a"), result("b"), user]), ""),
            (json!([user, calls, result("a")]), "did not have response messages: b"),
            (json!([user, calls, user, result("a"), result("b")]), "did not have response messages: a, b"),
            (json!([user, calls, result("b"), result("a")]), "order of their calls"),
            (json!([user, calls, result("a"), result("b"), result("b")]), "preceeding message"),
            (json!([user, result("a")]), "preceeding message"),
            (json!([user, calls, result("a"), result("b"), calls, result("a"), result("b")]), "Duplicate value"),
            (json!([{ "role": "user", "content": "" }]), "non-empty content"),
            (json!([{ "role": "user", "content": [{ "type": "text", "text": " " }] }]), "non-whitespace"),
            (json!([user, { "role": "assistant", "content": "" }]), "content or tool_calls"),
            (json!([user, bad_arguments, result("a")]), "arguments"),
            (json!([{ "role": "bash", "content": "x" }]), "Invalid value: 'bash'"),
            (json!([]), "at least one message"),
        ] {
            check(Dialect::OpenAiChat, chat_of(messages), expected);
        }
        let tool = json!({ "type": "function", "function": { "name": "read" } });
        check(Dialect::OpenAiChat, json!({ "model": "m", "messages": [user], "tools": [tool, tool] }), "unique");
        for (schema, expected) in [
            (json!({ "type": "object", "properties": {} }), ""),
            (json!({}), "type"),
            (json!({ "type": "object" }), "have properties"),
        ] {
            let tool = json!({ "type": "function", "function": { "name": "read", "parameters": schema } });
            check(Dialect::OpenAiChat, json!({ "model": "m", "messages": [user], "tools": [tool] }), expected);
        }
    }

    #[test]
    fn anthropic_messages() {
        let user = json!({ "role": "user", "content": [{ "type": "text", "text": "hi" }] });
        let calls = json!({ "role": "assistant", "content": [
            { "type": "tool_use", "id": "a", "name": "read", "input": {} },
            { "type": "tool_use", "id": "b", "name": "read", "input": {} }] });
        let result = |id: &str| json!({ "type": "tool_result", "tool_use_id": id, "content": "x" });
        let text = json!({ "type": "text", "text": "next" });
        let thinking = json!({ "role": "assistant", "content": [{ "type": "thinking", "thinking": "x" }, text] });
        let answer = |blocks: Value| json!({ "role": "user", "content": blocks });
        let failed =
            json!({ "type": "tool_result", "tool_use_id": "a", "is_error": true, "content": [{ "type": "image" }] });
        for (messages, expected) in [
            (json!([user]), ""),
            (json!([user, calls, answer(json!([result("a"), result("b"), text]))]), ""),
            (json!([user, calls, answer(json!([result("a")]))]), "without `tool_result` blocks"),
            (json!([user, calls, answer(json!([text, result("a"), result("b")]))]), "without `tool_result` blocks"),
            (json!([user, calls, answer(json!([result("b"), result("a")]))]), "order of their calls"),
            (json!([user, calls]), "without `tool_result` blocks"),
            (json!([answer(json!([result("a")]))]), "unexpected `tool_use_id`"),
            (json!([user, user]), "roles must alternate"),
            (json!([user, thinking]), "signature"),
            (json!([calls, answer(json!([result("a"), result("b")]))]), "first message"),
            (json!([user, { "role": "assistant", "content": [] }]), "non-empty content"),
            (json!([user, calls, answer(json!([failed, result("b")]))]), "if \"is_error\" is true"),
        ] {
            check(Dialect::Anthropic, json!({ "model": "m", "max_tokens": 10, "messages": messages }), expected);
        }
        check(Dialect::Anthropic, json!({ "model": "m", "messages": [user] }), "max_tokens");
    }

    #[test]
    fn openai_responses() {
        let user = json!({ "role": "user", "content": [{ "type": "input_text", "text": "hi" }] });
        let call = json!({ "type": "function_call", "call_id": "a", "name": "read", "arguments": "{}" });
        let output = json!({ "type": "function_call_output", "call_id": "a", "output": "x" });
        let reasoning = json!({ "type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x" });
        let bare = json!({ "type": "reasoning", "id": "rs_1", "summary": [] });
        for (input, expected) in [
            (json!([user, reasoning, call, output]), ""),
            (json!([user, call]), "No tool output found"),
            (json!([user, call, user, output]), "No tool output found"),
            (json!([user, output]), "No tool call found"),
            (json!([user, reasoning]), "required following item"),
            (json!([user, bare, call, output]), "not persisted"),
            (json!([user, { "type": "item_reference", "id": "rs_1" }]), "not persisted"),
        ] {
            check(Dialect::OpenAiResponses, json!({ "model": "m", "store": false, "input": input }), expected);
        }
    }

    #[test]
    fn gemini() {
        let user = json!({ "role": "user", "parts": [{ "text": "hi" }] });
        let call = json!({ "role": "model", "parts": [{ "functionCall": { "name": "read", "args": {} } }] });
        let result = json!({ "role": "user", "parts": [{ "functionResponse": { "name": "read", "response": {} } }] });
        for (contents, expected) in [
            (json!([user, call, result]), ""),
            (json!([user, call, user]), "number of function response parts"),
            (json!([user, call]), "number of function response parts"),
            (json!([user, result]), "number of function response parts"),
            (json!([call, result]), "immediately after a user turn"),
            (json!([{ "role": "user", "parts": [] }]), "must not be empty"),
            (json!([{ "role": "assistant", "parts": [{ "text": "x" }] }]), "valid role"),
        ] {
            check(Dialect::Google, json!({ "contents": contents }), expected);
        }
    }
}
