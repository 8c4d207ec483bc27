mod properties;

use std::sync::Mutex;

use futures_util::future::FutureExt;
use futures_util::stream::{self, BoxStream, StreamExt};
use kli_protocol::api::ModelOption;
use kli_protocol::record::{AssistantMessage, Body, Message};

use super::*;
use crate::context::transcript::plain;
use crate::provider::{Request, StreamEvent};

/// Answers by a function of the request; keeps the requests. The lock: tests look at them from outside.
struct Scripted<F> {
    answer: F,
    asked: Mutex<Vec<Request>>,
}

impl<F: Fn(usize, &str) -> StreamEvent + Send + Sync> Provider for Scripted<F> {
    fn stream(&self, request: Request, _: CancellationToken) -> BoxStream<'static, StreamEvent> {
        let mut asked = self.asked.lock().unwrap();
        asked.push(request.clone());
        let event = (self.answer)(asked.len(), &prompt(&request));
        stream::iter([StreamEvent::Started, event]).boxed()
    }
}

fn prompt(request: &Request) -> String {
    match &*request.messages[0] {
        Message::User(prompt) => plain(&prompt.content),
        other => panic!("{other:?}"),
    }
}

fn done(text: &str) -> StreamEvent {
    stopped(text, StopReason::Stop)
}

fn stopped(text: &str, stop_reason: StopReason) -> StreamEvent {
    let usage = Usage { input: 10, output: 1, ..Usage::default() };
    StreamEvent::Done(Box::new(AssistantMessage { content: text.into(), stop_reason, usage, ..Default::default() }))
}

/// A whole reply that gives a reason why it does not go on.
fn refused(text: &str) -> StreamEvent {
    let error_message = Some("The model refused.".to_owned());
    StreamEvent::Done(Box::new(AssistantMessage { content: text.into(), error_message, ..Default::default() }))
}

fn failed(kind: RunErrorKind, retryable: bool) -> StreamEvent {
    let failure = Failure { kind, message: "no".into(), retryable, retry_after_ms: None };
    StreamEvent::Failed { failure, partial: Box::default() }
}

fn summarizer<F>(answer: F, window: u64) -> (Summarizer, Arc<Scripted<F>>)
where
    F: Fn(usize, &str) -> StreamEvent + Send + Sync + 'static,
{
    let provider = Arc::new(Scripted { answer, asked: Mutex::default() });
    let efforts = ["minimal", "high"].map(str::to_owned).to_vec();
    let option = ModelOption { option_id: "reasoning-effort".into(), values: efforts, default: "high".into() };
    let model = ModelInfo {
        options: vec![option],
        provider: "p".into(),
        model_id: "m".into(),
        context_window: window,
        max_output: 4_096,
        ..Default::default()
    };
    let by = Summarizer {
        provider: Arc::clone(&provider) as Arc<dyn Provider>,
        budget: Budget::new(window, 16_384, 500),
        model: Arc::new(model),
        options: BTreeMap::from([("reasoning-effort".to_owned(), "high".into())]),
        attempts: 3,
        base_delay: Duration::from_secs(1),
        cache_key: "s".into(),
        on_retry: Arc::new(|_| std::future::ready(()).boxed()),
    };
    (by, provider)
}

fn record(id: &str, json: serde_json::Value) -> Arc<Item> {
    let mut json = json;
    json["id"] = id.into();
    Arc::new(Item::from(serde_json::from_value::<Record>(json).unwrap()))
}

fn user(id: &str, text: &str) -> Arc<Item> {
    record(id, serde_json::json!({"type":"message","message":{"role":"user","content":text}}))
}

fn reply(id: &str, text: &str) -> Arc<Item> {
    record(
        id,
        serde_json::json!({"type":"message","message":{"role":"assistant","content":text,"stopReason":"stop","provider":"p","model":"m"}}),
    )
}

fn tool_turn(id: &str, output: &str) -> [Arc<Item>; 2] {
    [
        record(
            &format!("a{id}"),
            serde_json::json!({"type":"message","message":{"role":"assistant","stopReason":"toolUse","provider":"p","model":"m",
            "content":[{"type":"toolCall","id":format!("c{id}"),"name":"read","arguments":{"path":format!("{id}.rs")}}]}}),
        ),
        record(
            &format!("r{id}"),
            serde_json::json!({"type":"message","message":{"role":"toolResult","toolCallId":format!("c{id}"),"toolName":"read","content":output}}),
        ),
    ]
}

/// Turns of about 100 tokens each.
fn turns(count: usize) -> Window {
    let mut window = Window::default();
    for n in 0..count {
        window.push(user(&format!("u{n}"), &format!("question {n} {}", "word ".repeat(40))));
        window.push(reply(&format!("a{n}"), &format!("answer {n} {}", "word ".repeat(40))));
    }
    window
}

fn push(window: &mut Window, id: &str, compaction: Compaction) {
    window.push(Arc::new(Item::from(Record::new(id, None, "", Body::Compaction(compaction)))));
}

async fn run(window: &Window, by: &Summarizer) -> Result<Compacted, CompactionError> {
    compact(&stretch(window, by), None, by, &CancellationToken::new()).await
}

fn stretch(window: &Window, by: &Summarizer) -> Stretch {
    Stretch::of(window.clone(), 300, &by.budget).expect("something to compact")
}

#[tokio::test(start_paused = true)]
async fn the_beginning_is_summarized_and_the_end_is_kept() {
    let (by, provider) = summarizer(|_, _| done(" the summary "), 100_000);
    let window = turns(20);
    let cancel = CancellationToken::new();
    let got = compact(&stretch(&window, &by), Some("mind the tests"), &by, &cancel).await.unwrap();
    assert_eq!(got.compaction.summary, "the summary");
    let kept = got.compaction.first_kept_entry_id.clone().unwrap();
    assert!(["u14", "u15"].contains(&kept.as_str()), "{kept}");
    assert!(got.compaction.tokens_before > got.tokens_after + 1_000);
    assert!((700..1_200).contains(&got.tokens_after), "{}", got.tokens_after);
    let asked = provider.asked.lock().unwrap();
    let text = prompt(&asked[0]);
    assert!(asked.len() == 1 && text.starts_with("Summarize the conversation"), "{text}");
    assert!(text.contains("mind the tests") && text.contains("question 0") && text.contains("answer 13"));
    assert!(!text.contains("question 16"));
    assert!(asked[0].tools.is_empty());
    assert_eq!(asked[0].options, BTreeMap::from([("reasoning-effort".to_owned(), "minimal".into())]));
}

#[tokio::test(start_paused = true)]
async fn a_summary_that_is_none_changes_nothing() {
    let long = "long ".repeat(5_000);
    for (answer, want) in [
        (done(" \n"), "returned no summary"),
        (stopped("half", StopReason::Length), "cut off"),
        (done(&long), "no fewer than"),
        (refused("I cannot do that."), "stays as it was: The model refused."),
        (refused(""), "stays as it was: The model refused."),
        (failed(RunErrorKind::BadRequest, false), "The summary failed, and the conversation stays as it was: no"),
        (StreamEvent::Started, "had no end"),
    ] {
        let (by, provider) = summarizer(move |_, _| answer.clone(), 100_000);
        let error = run(&turns(20), &by).await.unwrap_err();
        assert!(error.to_string().contains(want), "{error}");
        assert_eq!(ApiError::from(error).kind(), Some(ErrorKind::CompactionFailed));
        assert_eq!(provider.asked.lock().unwrap().len(), 1);
    }
    let (by, _) = summarizer(|_, _| done("x"), 100_000);
    assert!(Stretch::of(turns(3), 300, &by.budget).is_none());
    assert_eq!(ApiError::from(CompactionError::NothingToCompact).kind(), Some(ErrorKind::NothingToCompact));
}

#[tokio::test(start_paused = true)]
async fn failures_that_may_pass_are_tried_again() {
    // What a provider asks for is waited.
    for (failures, ok, asked, waits) in
        [(2, true, None, [1_000, 2_000]), (3, false, None, [1_000, 2_000]), (2, true, Some(200_000), [200_000; 2])]
    {
        let answer = move |n, _: &str| {
            let StreamEvent::Failed { mut failure, partial } = failed(RunErrorKind::Overloaded, true) else { panic!() };
            failure.retry_after_ms = asked;
            if n <= failures { StreamEvent::Failed { failure, partial } } else { done("S") }
        };
        let (mut by, provider) = summarizer(answer, 100_000);
        let told = Arc::<Mutex<Vec<Retry>>>::default();
        let listener = told.clone();
        by.on_retry = Arc::new(move |retry| {
            listener.lock().unwrap().push(retry);
            std::future::ready(()).boxed()
        });
        assert_eq!(run(&turns(20), &by).await.is_ok(), ok);
        assert_eq!(provider.asked.lock().unwrap().len(), 3);
        let retry = |attempt, delay_ms| Retry { attempt, max_attempts: 3, delay_ms, reason: "no".into() };
        assert_eq!(*told.lock().unwrap(), [retry(2, waits[0]), retry(3, waits[1])]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_abort_ends_it() {
    let cancel = CancellationToken::new();
    let token = cancel.clone();
    let (by, _) = summarizer(
        move |_, _| {
            token.cancel();
            failed(RunErrorKind::Network, true)
        },
        100_000,
    );
    let error = compact(&stretch(&turns(20), &by), None, &by, &cancel).await.unwrap_err();
    assert!(matches!(error, CompactionError::Aborted), "{error}");
}

/// The stretch is longer than the summariser's window: parts, each summary carried into the next.
#[tokio::test(start_paused = true)]
async fn long_stretches_are_read_in_parts() {
    let (by, provider) = summarizer(|n, _| done(&format!("summary {n}")), 8_192);
    let got = run(&turns(400), &by).await.unwrap();
    let asked = provider.asked.lock().unwrap();
    let texts: Vec<String> = asked.iter().map(prompt).collect();
    assert!(asked.len() > 5, "{}", asked.len());
    assert_eq!(got.compaction.summary, format!("summary {}", asked.len()));
    assert_eq!(got.compaction.usage.unwrap().input, 10 * asked.len() as u64);
    for (n, text) in texts.iter().enumerate() {
        assert!(estimate::text(text) + by.output_limit() < 8_192);
        assert_eq!(text.contains(&format!("summary {n}\n</earlier-summary>")), n > 0, "{text}");
    }
    for n in 0..380 {
        assert!(texts.iter().any(|text| text.contains(&format!("question {n} word"))), "{n}");
    }
}

#[tokio::test(start_paused = true)]
async fn parts_are_halved_when_they_are_too_long_after_all() {
    let too_long = |_, text: &str| {
        if estimate::text(text) > 1_500 { failed(RunErrorKind::ContextOverflow, false) } else { done("S") }
    };
    let (by, _) = summarizer(too_long, 16_384);
    assert_eq!(run(&turns(100), &by).await.unwrap().compaction.summary, "S");
    let (by, provider) = summarizer(|_, _: &str| failed(RunErrorKind::ContextOverflow, false), 16_384);
    assert!(run(&turns(100), &by).await.is_err());
    assert!(provider.asked.lock().unwrap().len() <= 5);
    let (by, provider) = summarizer(|_, _: &str| done("S"), 1_000);
    let error = run(&turns(100), &by).await.unwrap_err();
    assert!(matches!(error, CompactionError::TooLong { .. }), "{error}");
    assert!(provider.asked.lock().unwrap().is_empty());
}

/// One turn larger than what is kept: its prompt stays verbatim, through any number of compactions.
#[tokio::test(start_paused = true)]
async fn a_split_turn_keeps_its_prompt() {
    let (by, provider) = summarizer(|n, _| done(&format!("so far {n}")), 100_000);
    let mut window = turns(5);
    window.push(user("u", "THE TASK,\n\nverbatim"));
    for round in 0..3 {
        for n in 0..10 {
            for item in tool_turn(&format!("{round}-{n}"), &"output ".repeat(150)) {
                window.push(item);
            }
        }
        let got = run(&window, &by).await.unwrap();
        assert!(prompt(provider.asked.lock().unwrap().last().unwrap()).contains("## Current turn so far"));
        push(&mut window, &format!("k{round}"), got.compaction);
        let sent = assemble(&window, &by.model);
        let sent: String = sent.messages.iter().map(|m| serde_json::to_string(m).unwrap()).collect();
        assert_eq!(sent.matches(r"THE TASK,\n\nverbatim").count(), 1, "{sent}");
        assert!(!prompt(provider.asked.lock().unwrap().last().unwrap()).contains("<earlier-summary>\nTHE TASK"));
    }
    // With the next prompt it is history like any other.
    window.push(user("u2", "next"));
    for n in 0..10 {
        window.push(user(&format!("v{n}"), &"word ".repeat(100)));
    }
    let got = run(&window, &by).await.unwrap();
    assert!(!got.compaction.summary.contains("latest-request"), "{}", got.compaction.summary);
    assert!(got.compaction.details.unwrap().read_files.contains(&"0-0.rs".to_owned()));
}

/// Twenty compactions, a summariser that carries facts through: none is lost, and each summary replaces the last.
#[tokio::test(start_paused = true)]
async fn facts_survive_twenty_compactions() {
    let carry = |_, text: &str| {
        let mut facts: Vec<&str> = text.split_whitespace().filter(|word| word.starts_with("FACT")).collect();
        facts.sort_unstable();
        facts.dedup();
        done(&format!("Known: {}", facts.join(" ")))
    };
    let (by, _) = summarizer(carry, 20_000);
    let mut window = Window::default();
    let mut turn = 0;
    for round in 0..20 {
        for _ in 0..15 {
            turn += 1;
            let fact = if turn % 10 == 0 { format!("FACT{turn:03} ") } else { String::new() };
            window.push(user(&format!("u{turn}"), &format!("{fact}please {}", "word ".repeat(60))));
            window.push(reply(&format!("a{turn}"), &"done ".repeat(60)));
        }
        let got = run(&window, &by).await.unwrap();
        push(&mut window, &format!("k{round}"), got.compaction);
        let sent = assemble(&window, &by.model);
        let text: String = sent.messages.iter().map(|m| serde_json::to_string(m).unwrap()).collect();
        for fact in (10..=turn).step_by(10) {
            assert!(
                text.contains(&format!("FACT{fact:03} ")) || text.contains(&format!("FACT{fact:03}")),
                "{fact} after {round}"
            );
        }
        assert_eq!(text.matches("<summary>").count(), 1);
        assert!(window.items().len() < 40, "the window stays small: {}", window.items().len());
    }
}

#[tokio::test(start_paused = true)]
async fn branches() {
    let (by, provider) = summarizer(|_, _| done("tried it"), 100_000);
    let cancel = CancellationToken::new();
    let path = [vec![user("u", "try")], tool_turn("1", "out").to_vec(), vec![reply("a", "failed")]].concat();
    let got = summarize_branch(&path, true, Some("why it failed"), &by, &cancel).await.unwrap().unwrap();
    assert_eq!(got.summary, "tried it\n\n<read-files>\n1.rs\n</read-files>");
    let text = prompt(&provider.asked.lock().unwrap()[0]);
    for part in [
        "Summarize the conversation below: a path",
        "[User]\ntry",
        "why it failed",
        "beginning of the path is left out",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let nothing = [record("l", serde_json::json!({"type":"model_change","provider":"p","modelId":"m"}))];
    assert_eq!(summarize_branch(&nothing, false, None, &by, &cancel).await.unwrap(), None);
    assert_eq!(provider.asked.lock().unwrap().len(), 1);
}
