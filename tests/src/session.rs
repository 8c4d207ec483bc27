//! One session as one client sees it: calls that name it, and what tests look at again and again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::{Client, Daemon, Event, RpcError, fixtures};

/// Records that are bookkeeping and no part of the tree.
const MARKS: &[&str] = &["custom", "label", "session_info", "usage", "context_edit", "leaf"];

/// A session, with a connection of its own.
pub struct Session {
    pub client: Client,
    pub id: String,
}

impl Session {
    #[track_caller]
    pub fn create(daemon: &Daemon, work_dir: &Path) -> Session {
        Session::create_with(daemon, json!({ "workDir": work_dir }))
    }

    #[track_caller]
    pub fn create_with(daemon: &Daemon, params: Value) -> Session {
        let mut client = daemon.client();
        let info = client.call("createSession", params);
        Session { client, id: text(&info["sessionId"]) }
    }

    /// One that exists, by its id.
    #[track_caller]
    pub fn attach(daemon: &Daemon, id: &str) -> Session {
        Session { client: daemon.client(), id: id.to_owned() }
    }

    /// A file, where it lies.
    #[track_caller]
    pub fn open(daemon: &Daemon, path: &Path) -> Session {
        let mut client = daemon.client();
        let info = client.call("openSession", json!({ "path": path }));
        Session { client, id: text(&info["sessionId"]) }
    }

    fn params(&self, mut params: Value) -> Value {
        if let Some(fields) = params.as_object_mut() {
            fields.insert("sessionId".to_owned(), json!(self.id));
        }
        params
    }

    #[track_caller]
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        let params = self.params(params);
        self.client.call(method, params)
    }

    #[track_caller]
    pub fn error(&mut self, method: &str, params: Value) -> RpcError {
        let params = self.params(params);
        self.client.error(method, params)
    }

    #[track_caller]
    pub fn try_call(&mut self, method: &str, params: Value) -> Result<Value, RpcError> {
        let params = self.params(params);
        self.client.try_call(method, &params)
    }

    #[track_caller]
    pub fn send(&mut self, method: &str, params: Value) -> u64 {
        let params = self.params(params);
        self.client.send(method, params)
    }

    /// A prompt, to the end of its run; whoever is not there denies what needs a person.
    #[track_caller]
    pub fn run(&mut self, text: &str) -> Value {
        self.call("prompt", json!({ "text": text, "wait": true, "approvals": "deny" }))
    }

    /// The same, and it must end well.
    #[track_caller]
    pub fn ask(&mut self, text: &str) -> Value {
        let result = self.run(text);
        assert_eq!(result["stopReason"], "done", "{result}");
        result
    }

    #[track_caller]
    pub fn state(&mut self) -> Value {
        self.call("getSession", json!({}))
    }

    /// None: before the first entry.
    #[track_caller]
    pub fn leaf(&mut self) -> Option<String> {
        self.state()["leafId"].as_str().map(str::to_owned)
    }

    #[track_caller]
    pub fn path(&mut self) -> PathBuf {
        PathBuf::from(text(&self.state()["path"]))
    }

    /// All items of a method that answers in pages, the newest page first.
    #[track_caller]
    fn pages(&mut self, method: &str, key: &str) -> Vec<Value> {
        let mut all = Vec::new();
        let mut cursor = Value::Null;
        loop {
            let mut page = self.call(method, json!({ "cursor": cursor }));
            let Value::Array(mut items) = page[key].take() else { panic!("{method} without {key}: {page}") };
            items.append(&mut all);
            all = items;
            cursor = page["nextCursor"].take();
            if cursor.is_null() {
                return all;
            }
        }
    }

    /// The entries of the branch, root to leaf.
    #[track_caller]
    pub fn branch(&mut self) -> Vec<Value> {
        self.pages("getBranch", "entries")
    }

    #[track_caller]
    pub fn branch_ids(&mut self) -> Vec<String> {
        self.branch().iter().map(|entry| text(&entry["id"])).collect()
    }

    /// The messages of the branch.
    #[track_caller]
    pub fn messages(&mut self) -> Vec<Value> {
        self.branch().into_iter().filter(|e| e["type"] == "message").map(|mut e| e["message"].take()).collect()
    }

    /// The stored result of a call on the branch: its text, and whether it is an error.
    #[track_caller]
    pub fn result_of(&mut self, call_id: &str) -> (String, bool) {
        let message = self.messages().into_iter().find(|m| m["toolCallId"] == call_id);
        let message = message.unwrap_or_else(|| panic!("no result of {call_id} is stored"));
        (text_of(&message), message["isError"] == true)
    }

    /// All nodes of the tree.
    #[track_caller]
    pub fn nodes(&mut self) -> Vec<Value> {
        self.pages("getTree", "nodes")
    }

    #[track_caller]
    pub fn children(&mut self, id: &str) -> Vec<String> {
        let nodes = self.nodes();
        let node = nodes.iter().find(|node| node["id"] == id).unwrap_or_else(|| panic!("{id} is not in {nodes:?}"));
        node["children"].as_array().into_iter().flatten().map(text).collect()
    }

    #[track_caller]
    pub fn labels(&mut self) -> BTreeMap<String, String> {
        let labelled = |node: &Value| Some((text(&node["id"]), node["label"].as_str()?.to_owned()));
        self.nodes().iter().filter_map(labelled).collect()
    }

    /// The prompts of the branch, newest first: id and text.
    #[track_caller]
    pub fn prompts(&mut self) -> Vec<(String, String)> {
        let messages = self.call("getForkMessages", json!({}))["messages"].take();
        messages.as_array().into_iter().flatten().map(|m| (text(&m["entryId"]), text(&m["text"]))).collect()
    }

    #[track_caller]
    pub fn newest_prompt(&mut self) -> String {
        self.prompts().first().expect("a prompt on the branch").0.clone()
    }

    /// What the next request would send, as text to search in.
    #[track_caller]
    pub fn context(&mut self) -> String {
        self.call("getContext", json!({}))["messages"].to_string()
    }

    /// Subscribes, and gives the snapshot.
    #[track_caller]
    pub fn subscribe(&mut self) -> Event {
        let seen = self.client.events().len();
        self.call("subscribe", json!({}));
        self.client.until_after(seen, |event| event.kind() == "snapshot")
    }

    /// The end of the run that goes on.
    #[track_caller]
    pub fn wait(&mut self) -> Value {
        self.call("waitRun", json!({}))
    }

    /// The session that a fork, clone or rewind made.
    #[track_caller]
    pub fn forked(&mut self, daemon: &Daemon, method: &str, params: Value) -> (Session, Value) {
        let result = self.call(method, params);
        (Session::attach(daemon, &text(&result["session"]["sessionId"])), result)
    }

    /// The tree that its file holds (one that we wrote: nothing in it hangs on a mark): id → parent, children.
    #[track_caller]
    pub fn file_tree(&mut self) -> BTreeMap<String, (Value, Vec<String>)> {
        let records = fixtures::records(&self.path());
        let nodes: Vec<&Value> = records[1..].iter().filter(|record| is_node(record)).collect();
        nodes
            .iter()
            .map(|node| {
                let children = nodes.iter().filter(|child| child["parentId"] == node["id"]);
                (text(&node["id"]), (node["parentId"].clone(), children.map(|child| text(&child["id"])).collect()))
            })
            .collect()
    }
}

pub fn is_node(record: &Value) -> bool {
    record["type"].as_str().is_some_and(|kind| !MARKS.contains(&kind))
}

/// A string that must be there.
#[track_caller]
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("a string, not {value}")).to_owned()
}

/// All text of a message, whatever blocks it comes in.
pub fn text_of(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks.iter().filter_map(|block| block["text"].as_str()).collect(),
        _ => String::new(),
    }
}
