//! One run, watched from a script: `kli -p` and `kli continue`.

use std::collections::HashSet;
use std::future::Future;
use std::io::{self, Write};
use std::pin::Pin;
use std::time::Duration;

use kli_client::api::{self, Approvals, EventBody, Method, PromptParams, PromptResult, RunStop};
use kli_client::{CallError, Client, Received};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use super::args::{Global, NewSession, Output, Run};
use super::context::Context;
use super::out::{self, Style};
use super::{Exit, UsageError, input, text};

/// How long the events that belong to a run may come after its end was told.
const LATE: Duration = Duration::from_secs(3);
/// The words by which the result of a call that was refused for want of a person is known, the daemon's and ours.
const NOBODY: &str = "nobody is there to allow it";
/// What there is to see where not every event is printed.
const OF_INTEREST: [&str; 6] =
    ["runEnd", "approvalRequested", "approvalResolved", "toolEnd", "retryScheduled", "warning"];

/// `kli -p`.
pub async fn print(global: Global, run: Run) -> anyhow::Result<Exit> {
    let prompt = input::join(run.print.as_deref().unwrap_or_default(), input::piped()?);
    if prompt.trim().is_empty() {
        return Err(UsageError("-p needs a prompt: as its argument, or on standard input".into()).into());
    }
    let context = Context::connect(global).await?;
    let Chosen { session_id, model, is_new } = session(&context, &run).await?;
    let params = PromptParams {
        session_id: session_id.clone(),
        text: prompt,
        wait: Some(true),
        // Nobody is here to be asked.
        approvals: Some(Approvals::Deny),
        idempotency_key: Some(uuid::Uuid::new_v4().to_string()),
        provider: model.as_ref().map(|m| m.provider.clone()),
        model_id: model.map(|m| m.model_id),
        ..Default::default()
    };
    let start = Start::Prompt(Box::new(params));
    let exit = watch(&context.client, &session_id, start, &mut printer(&context, run.output)).await;
    // Only where the daemon refused: one that has gone is not started anew for this.
    let refused = exit.as_ref().is_err_and(|e| e.downcast_ref::<CallError>().is_some_and(|e| e.api().is_some()));
    if is_new && refused {
        context.take_back(&session_id).await;
    }
    exit
}

/// The session that is to run, and the model for this run where it is not the session's own.
struct Chosen {
    session_id: String,
    model: Option<api::ModelRef>,
    is_new: bool,
}

async fn session(context: &Context, run: &Run) -> anyhow::Result<Chosen> {
    let NewSession { model, mode, name, .. } = &run.new;
    let existing = match (&context.global.session, run.go_on) {
        (Some(_), _) => Some(context.session(None).await?),
        (None, true) => context.last().await?.map(|info| info.session_id),
        (None, false) => None,
    };
    let Some(session_id) = existing else {
        let session_id = context.create(&run.new).await?.session_id;
        return Ok(Chosen { session_id, model: None, is_new: true });
    };
    context.give_servers(&session_id, &run.new).await?;
    if let Some(mode) = mode {
        let params = api::SetModeParams { session_id: session_id.clone(), mode: (*mode).into() };
        context.client.call::<api::SetMode>(params).await?;
    }
    if let Some(name) = name {
        let params = api::SetSessionNameParams { session_id: session_id.clone(), name: name.clone() };
        context.client.call::<api::SetSessionName>(params).await?;
    }
    let model = match model {
        Some(model) => Some(context.model(model).await?),
        None => None,
    };
    Ok(Chosen { session_id, model, is_new: false })
}

/// `kli continue`.
pub async fn go_on(context: &Context, session: Option<&str>, output: Output) -> anyhow::Result<Exit> {
    let session_id = context.session(session).await?;
    watch(&context.client, &session_id, Start::Continue, &mut printer(context, output)).await
}

fn printer(context: &Context, output: Output) -> Printer<io::Stdout> {
    let output = if context.global.json && output == Output::Text { Output::Json } else { output };
    Printer { output, style: Style::of_stdout(), out: io::stdout() }
}

/// What begins the run.
pub enum Start {
    Prompt(Box<PromptParams>),
    Continue,
}

type Answer = Result<Box<RawValue>, CallError>;
type Aborting<'a> = Pin<Box<dyn Future<Output = Result<api::AbortResult, CallError>> + 'a>>;
type Calling<'a> = Pin<Box<dyn Future<Output = Answer> + 'a>>;

impl Start {
    fn call<'a>(self, client: &'a Client, session_id: &str) -> Calling<'a> {
        let session_id = session_id.to_owned();
        match self {
            Start::Prompt(params) => Box::pin(async move {
                // With its key it is run once, however often it has to be sent.
                let answer = match params.idempotency_key {
                    Some(_) => client.call_again(api::Prompt::NAME, &params).await?,
                    None => client.call_raw(api::Prompt::NAME, &params).await?,
                };
                to_the_end(client, answer, &session_id).await
            }),
            Start::Continue => Box::pin(async move {
                let params = api::ContinueRunParams { session_id: session_id.clone(), wait: Some(true) };
                let answer = client.call_raw(api::ContinueRun::NAME, &params).await?;
                to_the_end(client, answer, &session_id).await
            }),
        }
    }
}

/// Waits for the end of a run, where the reply came before it, as for what was queued.
async fn to_the_end(client: &Client, answer: Box<RawValue>, session_id: &str) -> Answer {
    match serde_json::from_str::<PromptResult>(answer.get()) {
        Ok(PromptResult { outcome: None, run_id, .. }) => {
            let params = api::WaitRunParams { session_id: session_id.to_owned(), run_id: Some(run_id) };
            client.call_again(api::WaitRun::NAME, &params).await
        }
        // What cannot be read is told where the rest of it is read.
        _ => Ok(answer),
    }
}

/// Everything that can happen while a run goes on.
enum Happening {
    Answer(Answer),
    Event(Result<Box<Received>, CallError>),
    Aborted(Result<api::AbortResult, CallError>),
    Interrupt,
    Terminate,
    TooLate,
}

/// Starts a run and prints what comes of it.
pub async fn watch(
    client: &Client,
    session_id: &str,
    start: Start,
    printer: &mut Printer<impl Write>,
) -> anyhow::Result<Exit> {
    let mut signals = Signals::listen()?;
    let mut events = client.events(session_id);
    if printer.output != Output::StreamJson {
        events = events.only(&OF_INTEREST);
    }
    events.start().await?;
    // A run that is taken up again does not know that nobody is here.
    let denies = matches!(start, Start::Continue);
    let mut call = start.call(client, session_id);
    let mut watched = Watched::default();
    let mut abort: Option<Aborting<'_>> = None;
    loop {
        let late = watched.deadline;
        let happening = tokio::select! {
            biased;
            signal = signals.next() => signal,
            answer = &mut call, if watched.answer.is_none() => Happening::Answer(answer),
            event = events.next(), if watched.listening => Happening::Event(event.map(Box::new)),
            done = async { match &mut abort { Some(f) => f.await, None => std::future::pending().await } } => Happening::Aborted(done),
            () = sleep_until(late.unwrap_or_else(Instant::now)), if late.is_some() => Happening::TooLate,
        };
        match happening {
            Happening::Answer(answer) => {
                watched.answered(&answer?)?;
            }
            Happening::Event(Ok(received)) => {
                printer.event(&received)?;
                watched.warn(&received.event.body);
                if let EventBody::ApprovalRequested { approval } = &received.event.body
                    && denies
                {
                    deny(client, session_id, approval).await;
                }
                watched.event(&received.event.body, received.event.run_id.as_deref());
            }
            Happening::Event(Err(e)) => {
                // The call goes on over its own connection, and tells the outcome.
                watched.listening = false;
                if printer.output == Output::StreamJson {
                    out::note(&e.to_string());
                }
            }
            Happening::Aborted(result) => {
                abort = None;
                if let Err(e) = result {
                    out::note(&format!("the run could not be aborted: {e}"));
                }
            }
            Happening::Interrupt | Happening::Terminate if watched.stopping.is_some() => {
                return Ok(Exit::Aborted);
            }
            Happening::Interrupt | Happening::Terminate => {
                let exit = if matches!(happening, Happening::Interrupt) { Exit::Aborted } else { Exit::Terminated };
                watched.stopping = Some(exit);
                let params = api::AbortParams { session_id: session_id.to_owned(), run_id: None };
                abort = Some(Box::pin(client.call::<api::Abort>(params)));
            }
            Happening::TooLate => watched.listening = false,
        }
        if watched.is_over() {
            break;
        }
    }
    drop(events);
    let Some((raw, result)) = watched.answer else { return Ok(Exit::Error) };
    if watched.denied {
        out::note("tool calls were refused, since nobody is here to allow them; `--mode auto` allows all");
    }
    printer.result(session_id, &raw, &result)?;
    Ok(exit_of(&result, watched.stopping))
}

/// Refuses a call for want of a person. Somebody who is quicker in another client is welcome.
async fn deny(client: &Client, session_id: &str, approval: &api::Approval) {
    let params = api::RespondToApprovalParams {
        session_id: session_id.to_owned(),
        approval_id: approval.approval_id.clone(),
        decision: api::Decision::Deny,
        message: Some(format!("{NOBODY}; `--mode auto` allows all")),
    };
    if let Err(e) = client.call::<api::RespondToApproval>(params).await {
        out::note(&e.to_string());
    }
}

/// What is known of the run so far.
struct Watched {
    answer: Option<(Map<String, Value>, PromptResult)>,
    ended: Vec<String>,
    listening: bool,
    stopping: Option<Exit>,
    denied: bool,
    warned: HashSet<String>,
    deadline: Option<Instant>,
}

impl Default for Watched {
    fn default() -> Watched {
        Watched {
            answer: None,
            ended: Vec::new(),
            listening: true,
            stopping: None,
            denied: false,
            warned: HashSet::new(),
            deadline: None,
        }
    }
}

impl Watched {
    fn answered(&mut self, raw: &RawValue) -> Result<(), CallError> {
        let bad =
            |e: serde_json::Error| CallError::BadReply { method: api::Prompt::NAME.into(), reason: e.to_string() };
        let fields = serde_json::from_str(raw.get()).map_err(bad)?;
        let result = serde_json::from_str(raw.get()).map_err(bad)?;
        self.answer = Some((fields, result));
        self.deadline = Some(Instant::now() + LATE);
        Ok(())
    }

    /// Tells what is the matter with the session or with its directory's configuration, each thing once.
    fn warn(&mut self, body: &EventBody) {
        let info = match body {
            EventBody::Snapshot { session, .. } => &session.info,
            EventBody::SessionInfoChanged { session } => session,
            _ => return,
        };
        for warning in &info.warnings {
            if self.warned.insert(warning.message.clone()) {
                out::note(&warning.message);
            }
        }
    }

    fn event(&mut self, body: &EventBody, run_id: Option<&str>) {
        match body {
            EventBody::RunEnd { .. } => self.ended.extend(run_id.map(str::to_owned)),
            EventBody::ApprovalResolved { decision, .. } if decision == "deny" => self.denied = true,
            EventBody::ToolEnd { is_error: true, content, .. } if content.text().contains(NOBODY) => {
                self.denied = true;
            }
            EventBody::RetryScheduled { attempt, max_attempts, delay_ms, reason } => out::note(&format!(
                "{reason}; trying again in {} s ({attempt} of {max_attempts})",
                delay_ms.div_ceil(1000)
            )),
            EventBody::Warning { message, .. } => out::note(message),
            _ => {}
        }
    }

    /// The answer is here, and so are the events of its run.
    fn is_over(&self) -> bool {
        let Some((_, result)) = &self.answer else { return false };
        !self.listening || self.ended.contains(&result.run_id)
    }
}

fn exit_of(result: &PromptResult, stopping: Option<Exit>) -> Exit {
    let Some(outcome) = &result.outcome else { return Exit::Error };
    let why = match outcome.stop_reason {
        RunStop::Done => return Exit::Done,
        RunStop::Aborted => {
            out::note("aborted");
            return stopping.unwrap_or(Exit::Aborted);
        }
        RunStop::Length => "the answer was cut off at the model's output limit",
        RunStop::Refused => "the model refused to answer",
        RunStop::MaxTurns => "the run was ended at its limit of turns",
        RunStop::Error => "the run failed",
    };
    match &outcome.error {
        Some(error) => out::note(&error.message),
        None => out::note(why),
    }
    Exit::Error
}

/// Prints a run as `--output` says.
pub struct Printer<W> {
    pub output: Output,
    pub style: Style,
    pub out: W,
}

impl<W: Write> Printer<W> {
    fn event(&mut self, received: &Received) -> io::Result<()> {
        if self.output == Output::StreamJson {
            self.line(received.raw.get())?;
        }
        Ok(())
    }

    fn result(&mut self, session_id: &str, fields: &Map<String, Value>, result: &PromptResult) -> io::Result<()> {
        if self.output != Output::Text {
            let mut object = Map::new();
            if self.output == Output::StreamJson {
                object.insert("type".into(), "result".into());
            }
            object.insert("sessionId".into(), session_id.into());
            object.extend(fields.clone());
            let line = Value::Object(object).to_string();
            return self.line(&line);
        }
        let text = result.outcome.as_ref().map_or("", |outcome| outcome.text.as_str());
        if text.is_empty() {
            return Ok(());
        }
        let shown = if self.style.terminal { text::clean(text) } else { text.into() };
        self.write(&if shown.ends_with('\n') { shown } else { (shown.into_owned() + "\n").into() })
    }

    fn line(&mut self, json: &str) -> io::Result<()> {
        let json = if self.style.terminal { text::clean_json(json) } else { json.into() };
        self.write(&(json.into_owned() + "\n"))
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()).map_err(out::unwritten)
    }
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Happening {
        tokio::select! {
            _ = self.interrupt.recv() => Happening::Interrupt,
            _ = self.terminate.recv() => Happening::Terminate,
            _ = self.hangup.recv() => Happening::Terminate,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fake::{self, Fake, Reply, SESSION};
    use super::*;
    use kli_client::Connector;

    async fn go(fake: &Fake, output: Output, style: Style) -> (anyhow::Result<Exit>, String) {
        let connector = Connector::local(Some(fake.path.clone())).unwrap().without_starting();
        let client = Client::connect(connector).await.unwrap();
        let mut printer = Printer { output, style, out: Vec::new() };
        let params =
            PromptParams { session_id: SESSION.into(), text: "hi".into(), wait: Some(true), ..Default::default() };
        let exit = watch(&client, SESSION, Start::Prompt(Box::new(params)), &mut printer).await;
        (exit, String::from_utf8(printer.out).unwrap())
    }

    fn saying(text: &'static str) -> Fake {
        Fake::start(move |method, _| (method == "prompt").then(|| fake::run(text)))
    }

    #[tokio::test]
    async fn text_is_the_answer_alone() {
        for (said, plain, terminal) in [
            ("hello", "hello\n", "hello\n"),
            ("two\nlines\n", "two\nlines\n", "two\nlines\n"),
            ("\u{1b}[2J!", "\u{1b}[2J!\n", "\u{241b}[2J!\n"),
            ("", "", ""),
        ] {
            let fake = saying(said);
            for (style, shown) in [(Style::PLAIN, plain), (Style { terminal: true, ..Style::PLAIN }, terminal)] {
                let (exit, out) = go(&fake, Output::Text, style).await;
                assert_eq!((exit.unwrap(), out.as_str()), (Exit::Done, shown));
            }
        }
    }

    #[tokio::test]
    async fn json_is_one_object_with_the_session() {
        let (exit, out) = go(&saying("hello"), Output::Json, Style::PLAIN).await;
        let object: Value = serde_json::from_str(out.trim_end()).unwrap();
        assert_eq!(exit.unwrap(), Exit::Done);
        assert_eq!(object["sessionId"], SESSION);
        assert_eq!((&object["text"], &object["stopReason"]), (&json!("hello"), &json!("done")));
        assert_eq!(out.lines().count(), 1);
    }

    #[tokio::test]
    async fn stream_json_is_every_event_then_the_result() {
        let (exit, out) = go(&saying("hello"), Output::StreamJson, Style::PLAIN).await;
        assert_eq!(exit.unwrap(), Exit::Done);
        let types: Vec<String> = out
            .lines()
            .map(|l| serde_json::from_str::<Value>(l).unwrap()["type"].as_str().unwrap().to_owned())
            .collect();
        let all = [
            "snapshot",
            "runStart",
            "messageStart",
            "textDelta",
            "messageEnd",
            "aThingOfTheFuture",
            "runEnd",
            "result",
        ];
        assert_eq!(types, all);
    }

    #[tokio::test]
    async fn how_a_run_ended_is_the_exit_code() {
        for (stop, exit) in [
            ("done", Exit::Done),
            ("error", Exit::Error),
            ("length", Exit::Error),
            ("refused", Exit::Error),
            ("maxTurns", Exit::Error),
            ("aborted", Exit::Aborted),
        ] {
            let end = json!({"type": "runEnd", "runId": "r1", "stopReason": stop, "usage": fake::usage()});
            let fake = Fake::start(move |method, _| {
                (method == "prompt").then(|| Reply::Run(vec![end.clone()], fake::result(stop, "partial")))
            });
            let (got, out) = go(&fake, Output::Text, Style::PLAIN).await;
            assert_eq!((got.unwrap(), out.as_str()), (exit, "partial\n"), "{stop}");
        }
    }

    #[tokio::test]
    async fn a_reply_before_the_end_is_waited_for() {
        let fake = Fake::start(|method, params| match method {
            "prompt" => {
                let end = json!({"type": "runEnd", "runId": "r1", "stopReason": "done", "usage": fake::usage()});
                Some(Reply::Run(vec![end], json!({"runId": "r1", "queued": true})))
            }
            "waitRun" => {
                assert_eq!(params["runId"], "r1");
                Some(Reply::Result(fake::result("done", "late")))
            }
            _ => None,
        });
        let (exit, out) = go(&fake, Output::Text, Style::PLAIN).await;
        assert_eq!((exit.unwrap(), out.as_str()), (Exit::Done, "late\n"));
    }

    #[tokio::test]
    async fn a_run_that_is_taken_up_waits_for_no_person() {
        let fake = Fake::start(|method, params| match method {
            "continueRun" => Some(Reply::Never),
            "respondToApproval" => {
                assert_eq!(params["decision"], "deny");
                Some(Reply::Hangup)
            }
            _ => None,
        });
        let connector = Connector::local(Some(fake.path.clone())).unwrap().without_starting();
        let client = Client::connect(connector).await.unwrap();
        let mut printer = Printer { output: Output::Text, style: Style::PLAIN, out: Vec::new() };
        let approval = json!({"approvalId": "a", "toolCallId": "t", "toolName": "bash", "title": "x", "arguments": {}, "reason": ""});
        let watching = watch(&client, SESSION, Start::Continue, &mut printer);
        let publishing = async {
            fake.until_called("continueRun", 1).await;
            fake.publish(json!({"type": "approvalRequested", "approval": approval}));
        };
        let (exit, ()) = tokio::join!(watching, publishing);
        assert!(exit.is_err());
        assert_eq!(fake.calls("respondToApproval").len(), 1);
    }

    #[tokio::test]
    async fn errors_and_a_dying_daemon_are_errors() {
        let busy =
            json!({"code": -32024, "message": "a run goes on", "data": {"kind": "sessionBusy", "status": "running"}});
        let fake = Fake::start(move |method, _| (method == "prompt").then(|| Reply::Error(busy.clone())));
        let (exit, out) = go(&fake, Output::Text, Style::PLAIN).await;
        assert_eq!((exit.unwrap_err().to_string().as_str(), out.as_str()), ("a run goes on", ""));
        let fake = Fake::start(|method, _| (method == "prompt").then_some(Reply::Hangup));
        let (exit, _) = go(&fake, Output::Text, Style::PLAIN).await;
        assert!(exit.unwrap_err().to_string().contains("was lost"));
    }
}
