//! A client that is killed again and again at no particular moment ends with exactly what one has that was there all
//! along, and a prompt whose reply it lost is run once. `KLI_ROUNDS` makes the random rounds many
//! (`tests/scripts/long-rounds`).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kli_tests::model::{End, Step};
use kli_tests::{Event, PATIENCE, Place, Random, Reply, Session, text};
use serde_json::{Value, json};

/// What a client makes of the events: the text of each message, and all else as it came.
#[derive(Debug, Default, PartialEq)]
struct Transcript {
    streamed: BTreeMap<(String, u64), String>,
    kept: Vec<Value>,
    last: u64,
}

impl Transcript {
    fn take(&mut self, event: &Value) {
        let kind = event["type"].as_str().unwrap();
        let seq = event["seq"].as_u64().unwrap();
        assert!(!matches!(kind, "snapshot" | "lagged"), "nothing was missed for good: {event}");
        assert!(seq > self.last, "{seq} after {}: {event}", self.last);
        self.last = seq;
        if kind.ends_with("Delta") || kind == "toolUpdate" {
            let of = event["messageId"].as_str().or(event["toolCallId"].as_str()).unwrap().to_owned();
            let streamed = self.streamed.entry((of, event["index"].as_u64().unwrap_or(u64::MAX))).or_default();
            streamed.push_str(event["delta"].as_str().unwrap());
        } else {
            self.kept.push(event.clone());
        }
    }
}

/// A connection that may break anywhere, also in the middle of a line.
struct Frail {
    stream: UnixStream,
    buffer: Vec<u8>,
}

impl Frail {
    fn connect(socket: &Path) -> Frail {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Frail { stream, buffer: Vec::new() }
    }

    fn send(&mut self, id: u64, method: &str, params: Value) {
        let call = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.stream.write_all(format!("{call}\n").as_bytes()).unwrap();
    }

    /// Reads so many bytes, and gives the lines that came whole.
    fn read(&mut self, bytes: usize) -> Vec<Value> {
        let mut piece = vec![0; bytes];
        let length = self.stream.read(&mut piece).unwrap_or_else(|error| panic!("nothing in {PATIENCE:?}: {error}"));
        assert_ne!(length, 0, "the daemon closed");
        self.buffer.extend_from_slice(&piece[..length]);
        let whole = self.buffer.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = self.buffer.drain(..whole).collect();
        lines
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }
}

/// A run with text, thinking, tool calls with output, that goes on until it is told to end.
fn endless(place: &Place) -> Arc<AtomicBool> {
    let enough = Arc::new(AtomicBool::new(false));
    place.server.otherwise({
        let (enough, mut turn) = (enough.clone(), 0);
        move |_| {
            turn += 1;
            let words = (0..30).map(|n| Step::Text(format!("word {n} of turn {turn}, ")));
            if enough.load(Ordering::Relaxed) {
                return Reply::steps(words.chain([Step::End(End::Done)]));
            }
            let call = json!({ "command": format!("echo {turn}; echo error >&2") }).to_string();
            let before = [Step::Thinking(format!("thought {turn}"))];
            let after = [Step::Call(format!("call{turn}"), "bash".into(), call), Step::End(End::Calls)];
            Reply::steps(before.into_iter().chain(words).chain(after))
        }
    });
    enough
}

#[test]
fn ends_with_what_one_has_that_was_there() {
    let (rounds, mut random) = Random::rounds(10);
    let p = Place::with([]);
    let enough = endless(&p);
    let mut steady = p.session();
    let start = steady.subscribe().seq().unwrap();
    let mut flaky = Transcript { last: start, ..Transcript::default() };
    steady.call("prompt", json!({ "text": "go" }));
    let mut over = false;
    for round in 0.. {
        let is_last = round >= rounds;
        enough.store(is_last, Ordering::Relaxed);
        let mut frail = Frail::connect(&p.daemon.socket);
        frail.send(1, "subscribe", json!({ "sessionId": steady.id, "after": flaky.last }));
        let mut left = if is_last { usize::MAX } else { random.below(6000) };
        while left > 0 && !over {
            let bytes = (random.below(1000) + 1).min(left);
            left -= bytes;
            for message in frail.read(bytes) {
                if message["method"] == "sessionEvent" {
                    let event = &message["params"]["result"];
                    flaky.take(event);
                    over |= event["type"] == "runEnd";
                }
            }
        }
        if over {
            break;
        }
    }
    let end = flaky.last;
    steady.client.until(|event| event.seq().is_some_and(|seq| seq >= end));
    let mut steadily = Transcript { last: start, ..Transcript::default() };
    for event in steady.client.events().iter().filter(|event| event.kind() != "snapshot") {
        if event.seq() <= Some(end) {
            steadily.take(&event.body);
        }
    }
    assert_eq!(flaky.streamed, steadily.streamed);
    assert_eq!(flaky.kept, steadily.kept);
    // And both have what the session has: its branch, and the text of its messages.
    let entries: Vec<&Value> =
        flaky.kept.iter().filter(|e| e["type"] == "entryAppended").map(|e| &e["entry"]).collect();
    assert_eq!(entries, steady.branch().iter().collect::<Vec<_>>());
    for entry in entries.iter().filter(|entry| entry["message"]["role"] == "assistant") {
        for (index, block) in entry["message"]["content"].as_array().unwrap().iter().enumerate() {
            let said = block["text"].as_str().or(block["thinking"].as_str()).map(str::to_owned);
            let said = said.unwrap_or_else(|| block["arguments"].to_string());
            let streamed = &flaky.streamed[&(text(&entry["id"]), index as u64)];
            let same = *streamed == said
                || serde_json::from_str::<Value>(streamed).is_ok_and(|arguments| arguments == block["arguments"]);
            assert!(same, "{streamed} is not {said}");
        }
    }
}

/// A prompt with a key is sent until its reply comes, over connections that break before that, to a daemon that is
/// sometimes killed too: it is run once.
#[test]
fn a_prompt_that_is_sent_again_runs_once() {
    let (rounds, mut random) = Random::rounds(10);
    let mut p = Place::with([]);
    let id = p.session().id;
    for round in 0..rounds {
        let said = format!("prompt {round}.");
        let method = ["prompt", "followUp", "steer"][random.below(3)];
        let params =
            json!({ "sessionId": id, "text": said, "idempotencyKey": format!("key {round}"), "wait": round % 2 == 0 });
        // One daemon is killed in ten rounds, while the first reply is waited for.
        let mut to_kill = round % 10 == 5;
        let result = loop {
            let mut frail = Frail::connect(&p.daemon.socket);
            let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
            let call = format!("{call}\n").into_bytes();
            // Some break before the call is whole: that one was not made.
            let sent = if random.number().is_multiple_of(4) { random.below(call.len()) } else { call.len() };
            frail.stream.write_all(&call[..sent]).unwrap();
            if sent < call.len() {
                continue;
            }
            // The break itself is to come at no particular moment: a pause without a meaning is what is wanted here.
            std::thread::sleep(std::time::Duration::from_micros(random.number() % 20_000));
            if to_kill {
                to_kill = false;
                p.daemon.kill9();
                p.daemon.start();
                continue;
            }
            if random.number().is_multiple_of(3) {
                let reply = loop {
                    if let Some(reply) = frail.read(4096).pop() {
                        break reply;
                    }
                };
                break reply["result"].clone();
            }
        };
        assert!(result["runId"].is_string(), "{result}");
        let mut session = Session::attach(&p.daemon, &id);
        session.wait();
        let prompts: Vec<String> = session.prompts().into_iter().map(|(_, text)| text).collect();
        let times = prompts.iter().filter(|prompt| **prompt == said).count();
        assert_eq!(times, 1, "round {round} by {method}: {prompts:?}");
    }
    let mut session = Session::attach(&p.daemon, &id);
    let prompts: BTreeSet<String> = session.prompts().into_iter().map(|(_, text)| text).collect();
    assert_eq!(prompts.len() as u64, rounds, "{prompts:?}");
    // The model was asked once for each, but for those whose daemon was killed and nobody took up again.
    let asked = p.server.requests().len() as u64;
    assert!(asked <= rounds + rounds.div_ceil(10), "{asked} requests for {rounds} prompts");
    p.server.assert_valid();
}

/// Events of a client that was there, in the order in which they came.
#[test]
fn events_are_in_order_for_all_who_follow() {
    let p = Place::with([Reply::call("c1", "bash", json!({ "command": "seq 50" })), Reply::text("done")]);
    let mut session = p.session();
    let all: Vec<Session> = (0..20)
        .map(|_| {
            let mut other = Session::attach(&p.daemon, &session.id);
            other.subscribe();
            other
        })
        .collect();
    session.ask("go");
    let transcript = |events: &[Event]| {
        let mut transcript = Transcript::default();
        events.iter().filter(|event| event.kind() != "snapshot").for_each(|event| transcript.take(&event.body));
        transcript
    };
    let of: Vec<Transcript> = all
        .iter()
        .map(|one| {
            one.client.until_kind("runEnd");
            one.client.until(|e| e.kind() == "sessionInfoChanged" && e.body["session"]["status"] == "idle");
            transcript(&one.client.events())
        })
        .collect();
    assert!(of.windows(2).all(|pair| pair[0] == pair[1]));
}
