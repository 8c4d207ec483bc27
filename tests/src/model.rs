//! A model server on the loopback interface: it plays scripted replies in turn, in whichever wire format it is
//! asked, keeps every request, and answers 400 in the provider's own words to one that a strict provider would
//! refuse.

mod check;
mod http;
mod prompt;
mod render;
mod reply;

use std::collections::VecDeque;
use std::io::BufReader;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use serde_json::Value;

pub use check::problems;
pub use prompt::Prefix;
pub use reply::{End, Reply, Step};

use crate::PATIENCE;

/// A wire format, told by the path that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    OpenAiChat,
    OpenAiResponses,
    Anthropic,
    Google,
}

impl Dialect {
    /// Its name in `config.toml`.
    pub fn api(self) -> &'static str {
        match self {
            Dialect::OpenAiChat => "openai-chat",
            Dialect::OpenAiResponses => "openai-responses",
            Dialect::Anthropic => "anthropic",
            Dialect::Google => "google",
        }
    }

    fn of_path(path: &str) -> Option<Dialect> {
        let path = path.split('?').next().unwrap_or(path);
        match path {
            _ if path.ends_with("/chat/completions") => Some(Dialect::OpenAiChat),
            _ if path.ends_with("/responses") => Some(Dialect::OpenAiResponses),
            _ if path.ends_with("/messages") => Some(Dialect::Anthropic),
            _ if path.ends_with(":streamGenerateContent") => Some(Dialect::Google),
            _ => None,
        }
    }
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Received {
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub raw: Vec<u8>,
    pub body: Value,
    /// Why a strict provider would refuse it.
    pub problems: Vec<String>,
}

impl Received {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The texts of all messages of a chat request, without the system prompt: what the model was told.
    pub fn texts(&self) -> Vec<String> {
        prompt::texts(&self.body)
    }

    pub fn says(&self, text: &str) -> bool {
        self.texts().iter().any(|t| t.contains(text))
    }
}

type Compute = Box<dyn FnMut(&Received) -> Reply + Send>;

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    script: VecDeque<Reply>,
    otherwise: Option<Compute>,
    requests: Vec<Received>,
    /// Streams that the other side left before their end.
    cut: usize,
    stopped: bool,
}

pub struct ModelServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl ModelServer {
    /// Answers "done" to whatever no script says.
    pub fn start() -> ModelServer {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a loopback port");
        let address = listener.local_addr().expect("its address");
        let shared = Arc::<Shared>::default();
        std::thread::spawn({
            let shared = shared.clone();
            move || accept(&listener, &shared)
        });
        ModelServer { address, shared }
    }

    pub fn with(replies: impl IntoIterator<Item = Reply>) -> ModelServer {
        let server = ModelServer::start();
        server.script(replies);
        server
    }

    /// Adds replies, to be played in turn.
    pub fn script(&self, replies: impl IntoIterator<Item = Reply>) {
        self.shared.state.lock().unwrap().script.extend(replies);
    }

    /// Forgets what was not played yet.
    pub fn clear(&self) {
        self.shared.state.lock().unwrap().script.clear();
    }

    /// What to answer when the script is at its end.
    pub fn otherwise(&self, reply: impl FnMut(&Received) -> Reply + Send + 'static) {
        self.shared.state.lock().unwrap().otherwise = Some(Box::new(reply));
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Received> {
        self.shared.state.lock().unwrap().requests.clone()
    }

    #[track_caller]
    pub fn last(&self) -> Received {
        self.requests().pop().expect("the model was asked")
    }

    /// Returns when that many requests have come in all.
    #[track_caller]
    pub fn until_requests(&self, count: usize) {
        self.until(&format!("{count} requests"), |state| state.requests.len() >= count);
    }

    /// Returns when that many streams were left by the other side before their end.
    #[track_caller]
    pub fn until_cut(&self, count: usize) {
        self.until(&format!("{count} streams cut by the client"), |state| state.cut >= count);
    }

    #[track_caller]
    fn until(&self, what: &str, done: impl Fn(&State) -> bool) {
        let state = self.shared.state.lock().unwrap();
        let (state, _) = self.shared.changed.wait_timeout_while(state, PATIENCE, |state| !done(state)).unwrap();
        assert!(done(&state), "no {what} within {PATIENCE:?}, only {} requests", state.requests.len());
    }

    /// What strict providers would have refused.
    pub fn problems(&self) -> Vec<String> {
        self.shared.state.lock().unwrap().requests.iter().flat_map(|r| r.problems.clone()).collect()
    }

    #[track_caller]
    pub fn assert_valid(&self) {
        let problems = self.problems();
        assert!(problems.is_empty(), "requests that a provider would refuse: {problems:#?}");
    }

    /// How much of its prompt each request shares with the one before it: what a prompt cache can keep.
    pub fn prefixes(&self) -> Vec<Prefix> {
        let requests = self.requests();
        requests.windows(2).map(|pair| Prefix::of(&pair[0].body, &pair[1].body)).collect()
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The base address as `config.toml` wants it.
    pub fn base_url(&self, dialect: Dialect) -> String {
        match dialect {
            Dialect::OpenAiChat | Dialect::OpenAiResponses => format!("http://{}/v1", self.address),
            Dialect::Anthropic => format!("http://{}", self.address),
            Dialect::Google => format!("http://{}/v1beta", self.address),
        }
    }

    /// A configuration in which `fake/m1` of this server is the default model, speaking Chat Completions.
    pub fn config(&self, context_window: u64) -> String {
        self.config_of(Dialect::OpenAiChat, context_window)
    }

    pub fn config_of(&self, dialect: Dialect, context_window: u64) -> String {
        let (api, url) = (dialect.api(), self.base_url(dialect));
        format!(
            r#"defaultModel = "fake/m1"
defaultMode = "auto"
[retry]
maxAttempts = 3
baseDelayMs = 20
[providers.fake]
api = "{api}"
baseUrl = "{url}"
[[providers.fake.models]]
id = "m1"
contextWindow = {context_window}
maxOutput = 4096
reasoning = true
input = ["text", "image"]
cost = {{ input = 1.0, output = 2.0, cacheRead = 0.1, cacheWrite = 1.25 }}
[[providers.fake.models]]
id = "m2"
contextWindow = {context_window}
maxOutput = 4096
input = ["text"]
"#
        )
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap().stopped = true;
        // The accept loop looks at the flag when the next connection comes.
        let _ = TcpStream::connect(self.address);
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.state.lock().unwrap().stopped {
            return;
        }
        let Ok(stream) = stream else { continue };
        let shared = shared.clone();
        std::thread::spawn(move || {
            // A client that went away in the middle is no news here: tests look at what it did before.
            let _ = serve(stream, &shared);
        });
    }
}

/// One connection, request after request.
fn serve(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = BufReader::new(stream.try_clone()?);
    let mut output = http::Output::new(stream);
    while let Some(head) = http::read_head(&mut input)? {
        if head.method == "GET" {
            output.respond(200, &[], br#"{"object":"list","data":[{"id":"m1","object":"model"}]}"#)?;
            continue;
        }
        let raw = http::read_body(&mut input, &head)?;
        let body = serde_json::from_slice(&raw).unwrap_or(Value::Null);
        let dialect = Dialect::of_path(&head.path);
        let problems = match dialect {
            None => vec![format!("Invalid URL (POST {})", head.path)],
            Some(_) if !body.is_object() => vec!["We could not parse the JSON body of your request.".to_owned()],
            Some(dialect) => check::problems(dialect, &body, &head.headers),
        };
        let request = Received { path: head.path, headers: head.headers, raw, body, problems };
        let (Some(dialect), true) = (dialect, request.problems.is_empty()) else {
            let error = render::error(dialect, 400, "invalid_request_error", &request.problems[0]);
            record(shared, request);
            output.respond(400, &[], &error)?;
            continue;
        };
        let reply = record(shared, request.clone());
        match reply::play(reply, dialect, &request, &mut output) {
            Ok(http::After::Keep) => {}
            Ok(http::After::Close) => return Ok(()),
            Err(error) => {
                shared.state.lock().unwrap().cut += 1;
                shared.changed.notify_all();
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Keeps the request, and takes the next reply for a valid one.
fn record(shared: &Shared, request: Received) -> Reply {
    let mut state = shared.state.lock().unwrap();
    let valid = request.problems.is_empty();
    state.requests.push(request.clone());
    shared.changed.notify_all();
    if !valid {
        return Reply::text("");
    }
    if let Some(reply) = state.script.pop_front() {
        return reply;
    }
    match &mut state.otherwise {
        Some(compute) => compute(&request),
        None => Reply::text("done"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use serde_json::json;

    use super::*;
    use crate::Gate;

    fn post(server: &ModelServer, path: &str, body: &Value) -> (u16, String) {
        let mut stream = TcpStream::connect(server.address).unwrap();
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nanthropic-version: 1\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let status = reply.split(' ').nth(1).unwrap().parse().unwrap();
        (status, reply)
    }

    fn chat(messages: Value) -> Value {
        json!({ "model": "m1", "stream": true, "messages": messages })
    }

    /// The same script in each wire format.
    #[test]
    fn every_dialect_is_spoken() {
        let user = json!([{ "role": "user", "content": "hi" }]);
        for (path, body, ends) in [
            ("/v1/chat/completions", chat(user.clone()), "data: [DONE]\n\n"),
            ("/v1/messages", json!({ "model": "m1", "max_tokens": 9, "messages": user }), "message_stop\"}\n\n"),
            ("/v1/responses", json!({ "model": "m1", "input": user }), "}\n\n"),
            (
                "/v1beta/models/m1:streamGenerateContent?alt=sse",
                json!({ "contents": [{ "role": "user", "parts": [{ "text": "hi" }] }] }),
                "}\n\n",
            ),
        ] {
            let server = ModelServer::with([Reply::steps([
                Step::Thinking("hm".into()),
                Step::Text("look".into()),
                Step::Call("c1".into(), "read".into(), "{\"path\":\"a\"}".into()),
                Step::End(End::Calls),
            ])]);
            let (status, reply) = post(&server, path, &body);
            assert_eq!(status, 200, "{path}: {reply}");
            for part in ["hm", "look", "read", "path"] {
                assert!(reply.contains(part), "{path}: no {part} in {reply}");
            }
            assert!(reply.ends_with(ends), "{path}: {reply}");
            for line in reply.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|line| *line != "[DONE]") {
                serde_json::from_str::<Value>(line).unwrap();
            }
            server.assert_valid();
            assert!(server.last().says("hi"));
        }
    }

    #[test]
    fn scripts_failures_and_refusals() {
        let server = ModelServer::with([
            Reply::status(429, "rate_limit_error", "slow down").header("retry-after", "2"),
            Reply::body(502, "text/html", "<html>"),
        ]);
        server.otherwise(|request| Reply::text(&format!("you said {}", request.texts().join(","))));
        let user = json!({ "role": "user", "content": "hi" });
        let path = "/v1/chat/completions";
        let (status, reply) = post(&server, path, &chat(json!([user])));
        assert!(status == 429 && reply.contains("retry-after: 2") && reply.contains("slow down"), "{reply}");
        let (status, reply) = post(&server, path, &chat(json!([user])));
        assert!(status == 502 && reply.contains("text/html"), "{reply}");
        assert!(post(&server, path, &chat(json!([user]))).1.contains("you said hi"));
        assert!(server.problems().is_empty());
        let (status, reply) =
            post(&server, path, &chat(json!([user, { "role": "tool", "tool_call_id": "x", "content": "y" }])));
        assert!(status == 400 && reply.contains("preceeding message"), "{reply}");
        assert_eq!(post(&server, "/v1/other", &chat(json!([user]))).0, 400);
        assert_eq!((server.requests().len(), server.problems().len()), (5, 2));
    }

    #[test]
    fn a_held_stream_waits_for_the_test() {
        let gate = Gate::new();
        let server = ModelServer::with([
            Reply::held("before", &gate, "after"),
            Reply::steps([Step::Text("x".into()), Step::Reset]),
        ]);
        std::thread::scope(|scope| {
            let asked = scope
                .spawn(|| post(&server, "/v1/chat/completions", &chat(json!([{ "role": "user", "content": "hi" }]))));
            gate.reached();
            assert!(!asked.is_finished());
            gate.open();
            let (_, reply) = asked.join().unwrap();
            assert!(reply.contains("before") && reply.contains("after"));
        });
        let mut stream = TcpStream::connect(server.address).unwrap();
        let body = chat(json!([{ "role": "user", "content": "hi" }])).to_string();
        write!(stream, "POST /v1/chat/completions HTTP/1.1\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut reply = Vec::new();
        let error = stream.read_to_end(&mut reply).expect_err("a reset is no end");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn what_a_prompt_cache_can_keep() {
        let server = ModelServer::start();
        let say = |texts: &[&str]| {
            let system = json!({ "role": "system", "content": "s" });
            let said = texts.iter().map(|text| json!({ "role": "user", "content": text }));
            post(&server, "/v1/chat/completions", &chat(std::iter::once(system).chain(said).collect()));
        };
        say(&["one"]);
        say(&["one", "two"]);
        say(&["1", "two"]);
        let prefixes = server.prefixes();
        assert!(prefixes[0].is_whole() && !prefixes[1].is_whole(), "{prefixes:?}");
    }
}
