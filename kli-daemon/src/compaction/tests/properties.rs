//! Random trees, budgets and sequences of compactions: nothing that was said on a branch falls out of it unnoticed.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::context::tests::fixtures::valid;

/// What happens to a session. Numbers choose among what there is.
#[derive(Clone, Debug)]
enum Step {
    /// A prompt, and its reply.
    Say(usize),
    /// A prompt, calls with their results, a reply.
    Work(usize, usize),
    /// A prompt whose calls a crash left open.
    Crash,
    Setting,
    Go(usize),
    GoAndTell(usize),
    Compact {
        window: u64,
        keep: u64,
        good: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..200usize).prop_map(Step::Say),
        4 => (1..5usize, 1..300usize).prop_map(|(calls, len)| Step::Work(calls, len)),
        1 => Just(Step::Crash),
        1 => Just(Step::Setting),
        2 => any::<usize>().prop_map(Step::Go),
        1 => any::<usize>().prop_map(Step::GoAndTell),
        4 => (1_000..20_000u64, 1..1_500u64, prop::bool::weighted(0.8))
            .prop_map(|(window, keep, good)| Step::Compact { window, keep, good }),
    ]
}

/// A tree as a session has it, and what the summaries were told.
#[derive(Default)]
struct Tree {
    records: Vec<Record>,
    leaf: Option<usize>,
    marks: usize,
    /// Of each compaction and branch summary: the marks that its summariser read, its own and those of summaries
    /// that it read.
    told: Vec<(String, BTreeSet<String>)>,
    /// Kept from step to step, as a session does it.
    window: Window,
}

impl Tree {
    fn mark(&mut self, text: &str) -> String {
        self.marks += 1;
        format!("T{}T {text}", self.marks)
    }

    fn add(&mut self, body: Value) -> String {
        let id = format!("e{}", self.records.len());
        let mut value = body;
        value["id"] = id.as_str().into();
        value["parentId"] = self.leaf.map(|at| self.records[at].id.clone()).into();
        let record: Record = serde_json::from_value(value).unwrap();
        self.window.push(Arc::new(Item::of(&record)));
        self.records.push(record);
        self.leaf = Some(self.records.len() - 1);
        id
    }

    fn say(&mut self, role: &str, content: Value) {
        let stop = if content.to_string().contains("toolCall") { "toolUse" } else { "stop" };
        self.add(json!({"type":"message","message":{"role":role,"content":content,"stopReason":stop,"provider":"p","model":"m"}}));
    }

    fn prompt(&mut self, len: usize) {
        let text = self.mark(&format!("please,\n\n{}", "word ".repeat(len)));
        self.say("user", json!(text));
    }

    fn reply(&mut self) {
        let text = self.mark("done");
        self.say("assistant", json!([{"type":"text","text":text}]));
    }

    fn calls(&mut self, count: usize) -> Vec<String> {
        let ids: Vec<String> = (0..count).map(|n| format!("c{}-{n}", self.records.len())).collect();
        let calls: Vec<Value> = ids
            .iter()
            .map(|id| {
                let path = self.mark("a.rs");
                json!({"type":"toolCall","id":id,"name":"read","arguments":{"path":path}})
            })
            .collect();
        self.say("assistant", Value::Array(calls));
        ids
    }

    /// Root → leaf.
    fn branch(&self, leaf: Option<usize>) -> Vec<&Record> {
        let mut branch: Vec<&Record> = Vec::new();
        let mut at = leaf.map(|at| &self.records[at]);
        while let Some(record) = at {
            branch.push(record);
            at = record.parent_id.as_ref().and_then(|id| self.records.iter().find(|r| r.id == *id));
        }
        branch.reverse();
        branch
    }

    /// The window of a branch, read anew.
    fn read(&self, leaf: Option<usize>) -> Window {
        let branch = self.branch(leaf);
        let up = branch.iter().rev().map(|record| Ok::<_, std::convert::Infallible>(Arc::new(Item::of(record))));
        Window::read(up, |id| branch.iter().any(|r| r.id == id)).unwrap_or_else(|e| match e {})
    }

    fn go(&mut self, to: Option<usize>) {
        self.leaf = to;
        self.window = self.read(to);
    }

    fn told_by(&self, id: &str) -> BTreeSet<String> {
        self.told.iter().find(|(told, _)| told == id).map(|(_, marks)| marks.clone()).unwrap_or_default()
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Say(len) => {
                self.prompt(*len);
                self.reply();
            }
            Step::Work(count, len) => {
                self.prompt(5);
                for id in self.calls(*count) {
                    let text = self.mark(&"output ".repeat(*len));
                    self.add(json!({"type":"message","message":{"role":"toolResult","toolCallId":id,"toolName":"read","content":text}}));
                }
                self.reply();
            }
            Step::Crash => {
                self.prompt(5);
                self.calls(2);
            }
            Step::Setting => {
                self.add(json!({"type":"model_change","provider":"p","modelId":"m"}));
            }
            Step::Go(to) => self.go(choose(*to, self.records.len())),
            Step::GoAndTell(to) => self.go_and_tell(choose(*to, self.records.len())).await,
            Step::Compact { window, keep, good } => self.compact(*window, *keep, *good).await,
        }
    }

    async fn go_and_tell(&mut self, to: Option<usize>) {
        let (by, provider) = summarizer(|_, _| done("what was tried"), 1_000_000);
        let shared: BTreeSet<String> = self.branch(to).iter().map(|r| r.id.clone()).collect();
        let left: Vec<Arc<Item>> =
            self.branch(self.leaf).iter().filter(|r| !shared.contains(&r.id)).map(|r| Arc::new(Item::of(r))).collect();
        let cancel = CancellationToken::new();
        let made = summarize_branch(&left, false, None, &by, &cancel).await.unwrap();
        let mut told = read_by(&provider.asked.lock().unwrap());
        for item in &left {
            told.extend(self.told_by(&item.id));
        }
        self.go(to);
        let Some(made) = made else { return };
        let id = self.add(json!({"type":"branch_summary","summary":made.summary,"fromId":"root"}));
        self.told.push((id, told));
    }

    async fn compact(&mut self, window: u64, keep: u64, good: bool) {
        let (mut by, provider) = summarizer(move |_, _| done(if good { "S" } else { " " }), window);
        by.budget = Budget::new(window, window / 4, keep);
        let Some(stretch) = Stretch::of(self.window.clone(), 100, &by.budget) else { return };
        let Ok(made) = compact(&stretch, None, &by, &CancellationToken::new()).await else { return };
        assert!(good && made.tokens_after < made.compaction.tokens_before, "{made:?}");
        let mut told = read_by(&provider.asked.lock().unwrap());
        let before = self.window.compaction_id().map(str::to_owned);
        let gone = self
            .window
            .items()
            .iter()
            .take_while(|item| Some(&item.id) != made.compaction.first_kept_entry_id.as_ref());
        let read: Vec<String> = gone.map(|item| item.id.clone()).chain(before).collect();
        for id in read {
            told.extend(self.told_by(&id));
        }
        let body = made.compaction;
        let id = self.add(json!({"type":"compaction","summary":body.summary,"firstKeptEntryId":body.first_kept_entry_id,"details":body.details}));
        self.told.push((id, told));
        assert_eq!(assemble(&self.window, &by.model).tokens(100), made.tokens_after);
    }

    /// What must hold for the branch of every leaf.
    fn check(&self, leaf: Option<usize>) -> Result<(), TestCaseError> {
        let window = self.read(leaf);
        let (by, _) = summarizer(|_, _| done(""), 200_000);
        let sent = assemble(&window, &by.model);
        valid(&sent.messages).map_err(TestCaseError::fail)?;
        let texts: Vec<String> = sent.messages.iter().map(|m| serde_json::to_string(m).unwrap()).collect();
        let mut known: BTreeSet<String> = texts.iter().flat_map(|text| marks(text)).collect();
        known.extend(window.compaction_id().map(|id| self.told_by(id)).unwrap_or_default());
        let branch = self.branch(leaf);
        for record in &branch {
            for mark in marks(&serde_json::to_string(record).unwrap()) {
                prop_assert!(known.contains(&mark), "{} of {} is gone", mark, record.id);
            }
        }
        let newest = branch.iter().rev().find_map(|record| match &record.body {
            Body::Message(body) => match &body.message {
                Message::User(m) => Some(plain(&m.content)),
                _ => None,
            },
            _ => None,
        });
        if let Some(newest) = newest {
            let newest = serde_json::to_string(newest.trim()).unwrap();
            let count: usize = texts.iter().map(|text| text.matches(newest.trim_matches('"')).count()).sum();
            prop_assert_eq!(count, 1, "{} in {:#?}", newest, texts);
        }
        Ok(())
    }
}

/// None: before the first entry.
fn choose(number: usize, count: usize) -> Option<usize> {
    (number % (count + 1)).checked_sub(1)
}

/// The words that tell entries apart.
fn marks(text: &str) -> Vec<String> {
    text.replace("\\n", " ")
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|w| w.len() > 2 && w.starts_with('T') && w.ends_with('T'))
        .map(str::to_owned)
        .collect()
}

fn read_by(asked: &[Request]) -> BTreeSet<String> {
    asked.iter().flat_map(|request| marks(&prompt(request))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_falls_out_unnoticed(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let mut tree = Tree::default();
        for step in &steps {
            runtime.block_on(tree.step(step));
            tree.check(tree.leaf)?;
            // What a session keeps is what reading anew would give.
            let (kept, read) = (&tree.window, tree.read(tree.leaf));
            let (by, _) = summarizer(|_, _| done(""), 200_000);
            prop_assert_eq!(&assemble(kept, &by.model).messages, &assemble(&read, &by.model).messages);
        }
        for leaf in 0..tree.records.len() {
            tree.check(Some(leaf))?;
        }
    }
}
