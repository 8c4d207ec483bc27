//! The one HTTP client that carries all wire formats: sends a call, reads its events, and names every fault.
//!
//! Bounds: an event [`MAX_EVENT`], a reply [`MAX_REPLY`], an error body [`MAX_ERROR_BODY`], headers by hyper (100 of
//! them, 400 KiB). Waits: for the connection, and between events that bring the reply forward; comments and pings
//! do not count, so that a server which only keeps the line warm is given up on.

mod client;
mod fault;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{self, BoxStream, StreamExt};
use kli_protocol::api::RunErrorKind;
use kli_protocol::record::StopReason;
use reqwest::Response;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use client::Clients;

use super::Provider;
use super::key::{Key, KeySource};
use super::settings::Timeouts;
use crate::clock::Clock;
use crate::dialect::{Api, Decoder, Failure, Heard, Request, Start, StreamEvent, Target, event, failure};
use crate::sse;

pub const MAX_EVENT: usize = 16 << 20;
pub const MAX_REPLY: usize = 32 << 20;
pub const MAX_ERROR_BODY: usize = 64 << 10;

/// How long after the model stopped its usage and end mark may still come.
const AFTERWORD: Duration = Duration::from_secs(5);

/// A server and how it is spoken to.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub api: Api,
    /// Without a slash at the end.
    pub base_url: String,
    pub key: KeySource,
    pub headers: BTreeMap<String, String>,
    pub timeouts: Timeouts,
}

pub struct HttpProvider {
    endpoint: Arc<Endpoint>,
    clients: Arc<Clients>,
    clock: Arc<dyn Clock>,
}

impl HttpProvider {
    pub fn new(endpoint: Endpoint, clients: Arc<Clients>, clock: Arc<dyn Clock>) -> HttpProvider {
        HttpProvider { endpoint: Arc::new(endpoint), clients, clock }
    }
}

impl Provider for HttpProvider {
    fn stream(&self, request: Request, cancel: CancellationToken) -> BoxStream<'static, StreamEvent> {
        let start = Start {
            api: self.endpoint.api.name(),
            model: request.model.clone(),
            timestamp: self.clock.now_ms(),
            seed: self.clock.random() as u64,
        };
        let exchange = Exchange {
            endpoint: self.endpoint.clone(),
            clients: self.clients.clone(),
            clock: self.clock.clone(),
            decoder: self.endpoint.api.dialect().decoder(start),
            key: None,
            phase: Phase::Begin(Box::new(request)),
            ready: VecDeque::new(),
        };
        stream::unfold((exchange, cancel), |(mut exchange, cancel)| async move {
            let event = exchange.next(&cancel).await?;
            Some((event, (exchange, cancel)))
        })
        .boxed()
    }
}

/// One request and its reply.
struct Exchange {
    endpoint: Arc<Endpoint>,
    clients: Arc<Clients>,
    clock: Arc<dyn Clock>,
    decoder: Box<dyn Decoder>,
    key: Option<Key>,
    phase: Phase,
    ready: VecDeque<StreamEvent>,
}

enum Phase {
    Begin(Box<Request>),
    Reading(Box<Reading>),
    Over,
}

struct Reading {
    response: Response,
    body: Body,
    deadline: Instant,
}

/// What kind of body it is shows only in its first bytes: servers send JSON and web pages under any type.
enum Body {
    Unknown(Vec<u8>),
    Events(sse::Parser),
    Json(Vec<u8>),
}

/// What one step of an exchange came to.
enum Step {
    On(Phase),
    Whole,
}

impl Exchange {
    async fn next(&mut self, cancel: &CancellationToken) -> Option<StreamEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let phase = std::mem::replace(&mut self.phase, Phase::Over);
            if matches!(phase, Phase::Over) {
                return None;
            }
            // Dropping the step drops the connection: nothing is paid for that nobody reads.
            let step = tokio::select! {
                biased;
                () = cancel.cancelled() => None,
                step = self.step(phase) => Some(step),
            };
            match step {
                Some(Ok(Step::On(phase))) => {
                    self.phase = phase;
                    let events = self.decoder.assembler().take_events();
                    self.ready.extend(events);
                }
                Some(Ok(Step::Whole)) => {
                    self.decoder.seal();
                    let events = self.decoder.assembler().done();
                    self.ready.extend(events);
                }
                Some(Err(failure)) => self.fail(failure, StopReason::Error).await,
                None => {
                    let failure = Failure::fatal(RunErrorKind::Interrupted, "The request was aborted.");
                    self.fail(failure, StopReason::Aborted).await;
                }
            }
        }
    }

    async fn fail(&mut self, mut failure: Failure, stop: StopReason) {
        if let Some(key) = &self.key {
            failure.message = key.redact(&failure.message);
        }
        if failure.kind == RunErrorKind::Auth {
            self.endpoint.key.forget();
        }
        self.decoder.seal();
        let events = self.decoder.assembler().failed(failure, stop);
        self.ready.extend(events);
    }

    async fn step(&mut self, phase: Phase) -> Result<Step, Failure> {
        match phase {
            Phase::Begin(request) => self.send(&request).await.map(Step::On),
            Phase::Reading(reading) => self.read(reading).await,
            Phase::Over => Ok(Step::Whole),
        }
    }

    async fn send(&mut self, request: &Request) -> Result<Phase, Failure> {
        let target = Target { api: self.endpoint.api, base_url: &self.endpoint.base_url };
        let call = self.endpoint.api.dialect().encode(request, target);
        self.key = self.endpoint.key.resolve().await?;
        let url = format!("{}{}", self.endpoint.base_url, call.path);
        let timeouts = self.endpoint.timeouts;
        let client = self.clients.for_url(&url, timeouts.connect)?;
        let mut builder = client
            .post(&url)
            .header("content-type", "application/json")
            .header("accept", "text/event-stream, application/json");
        for (name, value) in &call.headers {
            builder = builder.header(*name, value);
        }
        for (name, value) in &self.endpoint.headers {
            builder = builder.header(name, value);
        }
        if let Some(key) = &self.key {
            let (name, prefix) = call.key_header;
            let mut value = reqwest::header::HeaderValue::try_from(format!("{prefix}{}", key.expose()))
                .map_err(|_| Failure::fatal(RunErrorKind::Auth, "The API key has characters that cannot be sent."))?;
            value.set_sensitive(true);
            builder = builder.header(name, value);
        }
        let deadline = Instant::now() + timeouts.idle;
        let response = match tokio::time::timeout_at(deadline, builder.body(call.body).send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(e)) => return Err(fault::of_transport(&e, &self.endpoint.base_url)),
            Err(_) => return Err(fault::silence(timeouts.idle)),
        };
        if !response.status().is_success() {
            return Err(self.refusal(response, deadline).await);
        }
        self.ready.push_back(StreamEvent::Started);
        Ok(Phase::Reading(Box::new(Reading {
            response,
            body: Body::Unknown(Vec::new()),
            deadline: Instant::now() + timeouts.idle,
        })))
    }

    /// What an answer with another status than 200 means.
    async fn refusal(&self, mut response: Response, deadline: Instant) -> Failure {
        let status = response.status().as_u16();
        let wait = fault::wait_asked_for(response.headers(), self.clock.now_ms());
        let mut body = Vec::new();
        while let Ok(Ok(Some(chunk))) = tokio::time::timeout_at(deadline, response.chunk()).await {
            let room = MAX_ERROR_BODY.saturating_sub(body.len());
            body.extend_from_slice(chunk.get(..room.min(chunk.len())).unwrap_or_default());
            if body.len() >= MAX_ERROR_BODY {
                break;
            }
        }
        failure::of_status(status, &String::from_utf8_lossy(&body), wait)
    }

    async fn read(&mut self, mut reading: Box<Reading>) -> Result<Step, Failure> {
        let idle = self.endpoint.timeouts.idle;
        let next = match reading.response.chunk().now_or_never() {
            Some(ready) => Ok(ready),
            None => tokio::time::timeout_at(reading.deadline, reading.response.chunk()).await,
        };
        let chunk = match next {
            Ok(Ok(Some(chunk))) => chunk,
            Ok(Ok(None)) => return self.end(reading.body, None),
            Ok(Err(e)) => return self.end(reading.body, Some(fault::of_transport(&e, &self.endpoint.base_url))),
            // It had stopped, only its usage is missing.
            Err(_) if self.decoder.complete() => return Ok(Step::Whole),
            Err(_) => return Err(fault::silence(idle)),
        };
        let mut events = Vec::new();
        reading.body = match reading.body.take(&chunk, &mut events) {
            Ok(body) => body,
            Err(e) => return Err(fault::too_large(&e.to_string())),
        };
        match self.hear(&events)? {
            Heard::End => {
                // The line can be used again once its last byte was read, which mostly came along.
                let _ = reading.response.chunk().now_or_never();
                return self.end_of_stream(None);
            }
            Heard::Content => reading.deadline = Instant::now() + idle,
            Heard::Stopped => reading.deadline = Instant::now() + AFTERWORD.min(idle),
            Heard::Nothing => {}
        }
        Ok(Step::On(Phase::Reading(reading)))
    }

    /// Feeds events to the decoder; the strongest of what it heard counts.
    fn hear(&mut self, events: &[sse::Event]) -> Result<Heard, Failure> {
        let mut most = Heard::Nothing;
        for event in events {
            match self.decoder.event(event)? {
                Heard::End => return Ok(Heard::End),
                Heard::Nothing => {}
                heard => most = heard,
            }
            if self.decoder.assembler().bytes() > MAX_REPLY {
                return Err(fault::too_large(&format!("the reply is longer than {MAX_REPLY} bytes")));
            }
        }
        Ok(most)
    }

    /// The body is at its end, or its connection is.
    fn end(&mut self, body: Body, broken: Option<Failure>) -> Result<Step, Failure> {
        match body {
            Body::Events(mut parser) => {
                let mut events = Vec::new();
                parser.finish(&mut events);
                self.hear(&events)?;
            }
            Body::Json(bytes) if broken.is_none() => self.whole_body(&bytes)?,
            Body::Json(_) | Body::Unknown(_) => {}
        }
        self.end_of_stream(broken)
    }

    fn end_of_stream(&mut self, broken: Option<Failure>) -> Result<Step, Failure> {
        if self.decoder.complete() {
            return Ok(Step::Whole);
        }
        Err(broken.unwrap_or_else(|| fault::cut_short(self.decoder.assembler().is_empty())))
    }

    fn whole_body(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let text = String::from_utf8_lossy(bytes);
        if text.trim_start().starts_with('<') {
            return Err(failure::web_page(&text));
        }
        let body: serde_json::Value = event::json(text.trim()).map_err(|e| failure::not_json(&text, &e))?;
        if let Some(failure) = failure::in_stream(&body) {
            return Err(failure);
        }
        self.decoder.body(body)?;
        if !self.decoder.complete() {
            return Err(fault::no_reply(&text));
        }
        Ok(())
    }
}

impl Body {
    fn take(self, chunk: &[u8], events: &mut Vec<sse::Event>) -> Result<Body, sse::TooLarge> {
        match self {
            Body::Unknown(mut head) => {
                head.extend_from_slice(chunk);
                let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&head);
                match text.iter().find(|b| !b.is_ascii_whitespace()) {
                    None if head.len() > MAX_ERROR_BODY => Err(sse::TooLarge { max: MAX_ERROR_BODY }),
                    None => Ok(Body::Unknown(head)),
                    Some(b'{' | b'[' | b'<') => Ok(Body::Json(text.to_vec())),
                    Some(_) => Body::Events(sse::Parser::new(MAX_EVENT)).take(&head, events),
                }
            }
            Body::Events(mut parser) => {
                parser.push(chunk, events)?;
                Ok(Body::Events(parser))
            }
            Body::Json(mut bytes) => {
                if bytes.len() + chunk.len() > MAX_EVENT {
                    return Err(sse::TooLarge { max: MAX_EVENT });
                }
                bytes.extend_from_slice(chunk);
                Ok(Body::Json(bytes))
            }
        }
    }
}
