//! What the model server is to answer, independent of the wire format.

use std::time::Duration;

use serde_json::Value;

use super::http::{After, Output};
use super::{Dialect, Received, render};
use crate::Gate;

/// One reply of a script.
#[derive(Clone, Debug)]
pub struct Reply {
    body: Body,
    headers: Vec<(String, String)>,
    usage: Option<(u64, u64)>,
}

#[derive(Clone, Debug)]
enum Body {
    Stream(Vec<Step>),
    /// A failure in the wire format's own shape: status, kind, message.
    Error(u16, String, String),
    /// Status, type and bytes as they are.
    Whole(u16, String, Vec<u8>),
}

/// A piece of a reply. Steps are sent one by one, each in a write of its own.
#[derive(Clone, Debug)]
pub enum Step {
    Text(String),
    Thinking(String),
    /// A whole tool call: id, name, arguments as JSON text.
    Call(String, String, String),
    /// Bytes as they are.
    Raw(Vec<u8>),
    /// Stops until the test opens the gate.
    Hold(Gate),
    /// Nothing for so long: for benches, which want a pace.
    Pause(Duration),
    /// The end of the message, with the reason that this wire format has for it.
    End(End),
    /// Breaks the connection off, so that the other side sees a reset.
    Reset,
}

/// Why a message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Done,
    Calls,
    Length,
}

impl Reply {
    fn stream(steps: Vec<Step>) -> Reply {
        Reply { body: Body::Stream(steps), headers: Vec::new(), usage: None }
    }

    pub fn text(text: &str) -> Reply {
        Reply::stream(vec![Step::Text(text.to_owned()), Step::End(End::Done)])
    }

    /// Tool calls: id, name, arguments.
    pub fn calls(calls: &[(&str, &str, Value)]) -> Reply {
        let mut steps: Vec<Step> = calls
            .iter()
            .map(|(id, name, arguments)| Step::Call((*id).to_owned(), (*name).to_owned(), arguments.to_string()))
            .collect();
        steps.push(Step::End(End::Calls));
        Reply::stream(steps)
    }

    pub fn call(id: &str, name: &str, arguments: Value) -> Reply {
        Reply::calls(&[(id, name, arguments)])
    }

    /// Text that stops in the middle until the test opens the gate.
    pub fn held(before: &str, gate: &Gate, after: &str) -> Reply {
        Reply::stream(vec![
            Step::Text(before.to_owned()),
            Step::Hold(gate.clone()),
            Step::Text(after.to_owned()),
            Step::End(End::Done),
        ])
    }

    /// Any steps; a reply without an end breaks off.
    pub fn steps(steps: impl IntoIterator<Item = Step>) -> Reply {
        Reply::stream(steps.into_iter().collect())
    }

    /// A stream of bytes as they are: a recorded reply, whole or broken.
    pub fn sse(bytes: impl Into<Vec<u8>>) -> Reply {
        Reply::stream(vec![Step::Raw(bytes.into())])
    }

    /// A failure by status, with a body of the wire format's own shape.
    pub fn status(status: u16, kind: &str, message: &str) -> Reply {
        let body = Body::Error(status, kind.to_owned(), message.to_owned());
        Reply { body, headers: Vec::new(), usage: None }
    }

    /// Any status with any body.
    pub fn body(status: u16, content_type: &str, bytes: impl Into<Vec<u8>>) -> Reply {
        let body = Body::Whole(status, content_type.to_owned(), bytes.into());
        Reply { body, headers: Vec::new(), usage: None }
    }

    pub fn header(mut self, name: &str, value: &str) -> Reply {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Tokens to report: input and output. Else the input is a quarter of the request's bytes.
    pub fn usage(mut self, input: u64, output: u64) -> Reply {
        self.usage = Some((input, output));
        self
    }
}

/// Sends a reply. An error says that the other side left.
pub fn play(reply: Reply, dialect: Dialect, request: &Received, output: &mut Output) -> std::io::Result<After> {
    match reply.body {
        Body::Error(status, kind, message) => {
            let body = render::error(Some(dialect), status, &kind, &message);
            output.respond(status, &reply.headers, &body)?;
            Ok(After::Keep)
        }
        Body::Whole(status, content_type, bytes) => {
            let mut headers = reply.headers;
            headers.push(("content-type".to_owned(), content_type));
            output.respond(status, &headers, &bytes)?;
            Ok(After::Keep)
        }
        Body::Stream(steps) => {
            let usage = reply.usage.unwrap_or((request.raw.len() as u64 / 4, 5));
            let mut stream = render::Stream::new(dialect, usage);
            output.begin_stream(&reply.headers)?;
            for step in steps {
                match step {
                    Step::Hold(gate) => gate.pass(),
                    Step::Pause(time) => std::thread::sleep(time),
                    Step::Raw(bytes) => output.send(&bytes)?,
                    Step::Reset => {
                        output.reset()?;
                        break;
                    }
                    step => output.send(stream.step(&step).as_bytes())?,
                }
            }
            Ok(After::Close)
        }
    }
}
