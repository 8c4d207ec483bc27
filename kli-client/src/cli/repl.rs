//! `kli` alone: a prompt, line by line. Events of the session are printed as they come, whoever caused them.
//!
//! One loop waits for one of a few things: an event, a line of the person, Ctrl-C, or the end of an operation
//! that takes its time. Everything else is a short call. With standard input from a pipe the same loop takes the
//! next line when nothing goes on any more, so a script sees each answer before its next line is read.

mod commands;
mod complete;
mod person;
mod reader;
mod render;
mod screen;
mod session;
mod slash;

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::io::IsTerminal;
use std::pin::Pin;
use std::time::Duration;

use kli_client::api::{self, Approval, EventBody, SessionInfo, SessionState, Status};
use kli_client::{CallError, ErrorKind, EventStream, Step, socket};
use tokio::signal::unix::{SignalKind, signal};

use super::Exit;
use super::args::{Global, NewSession, Run};
use super::context::{Context, is_setting};
use super::out::Style;
use super::transcript;
use reader::{Input, Reader, Want};
use render::Render;
use screen::Screen;
use slash::Answer;

/// Entries of an older conversation that are shown when it is taken up.
const SHOWN_OF_OLD: u64 = 8;
/// How long leaving may wait for the daemon.
const FAREWELL: Duration = Duration::from_secs(1);

pub async fn start(global: Global, run: Run) -> anyhow::Result<Exit> {
    let context = Context::connect(global).await?;
    let existing = match (&context.global.session, run.go_on) {
        (Some(_), _) => Some(context.session(None).await?),
        (None, true) => context.last().await?.map(|info| info.session_id),
        (None, false) => None,
    };
    let is_new = existing.is_none();
    let session_id = match existing {
        Some(id) => id,
        None => context.create(&run.new).await?.session_id,
    };
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let mode = rustix::termios::tcgetattr(std::io::stdin()).ok();
    // A terminal without a width, as some programs make them, cannot be edited on.
    let width = rustix::termios::tcgetwinsize(std::io::stdout()).map_or(0, |size| size.ws_col);
    let (reader, printer) = Reader::start(terminal && width > 0, history())?;
    let mut repl = Repl {
        events: context.client.events(&session_id),
        context,
        session_id: session_id.clone(),
        made: None,
        is_lost: false,
        reader,
        screen: Screen::new(printer),
        render: Render::new(Style::of_stdout()),
        style: Style::of_stdout(),
        terminal,
        run: None,
        operation: None,
        commanded: false,
        approvals: VecDeque::new(),
        answered: HashSet::new(),
        asked: None,
        in_memory: false,
        warned: HashSet::new(),
        trust: None,
        aborting: false,
        leaving: false,
        ended: false,
        initial: String::new(),
        unfinished: String::new(),
        listed: Listed::Nothing,
        exit: None,
    };
    repl.attach(&session_id).await?;
    if is_new {
        repl.made = Some(run.new);
    } else {
        repl.apply(&run).await?;
    }
    repl.greet(is_new).await?;
    let exit = repl.serve().await;
    if repl.made.is_some() && !repl.is_lost {
        let _ = tokio::time::timeout(FAREWELL, repl.context.take_back(&repl.session_id)).await;
    }
    if let Some(mode) = mode.filter(|_| repl.reader.is_editing()) {
        // The editor was left in the middle of a line; the terminal is given back as it was.
        let _ = rustix::termios::tcsetattr(std::io::stdin(), rustix::termios::OptionalActions::Now, &mode);
        let _ = super::out::print("\u{1b}[?2004l\r\n");
    }
    exit
}

/// Where earlier lines are kept, for the editor.
fn history() -> Option<std::path::PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    let dir = socket::state_dir()?;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).ok()?;
    Some(dir.join("history"))
}

/// What the last numbered list held.
enum Listed {
    Nothing,
    Prompts(Vec<String>),
    Sessions(Vec<String>),
    Models(Vec<api::ModelRef>),
}

/// Something that takes its time, and what to say at its end.
type Operation = Pin<Box<dyn Future<Output = Done>>>;

enum Done {
    Said(Result<String, CallError>),
    /// The leaf was moved.
    Moved(Result<api::NavigateTreeResult, CallError>),
}

struct Repl {
    context: Context,
    session_id: String,
    /// What the session was made of, as long as nothing was said in it: it is kept only if something is.
    made: Option<NewSession>,
    /// The connection is gone, and not yet back.
    is_lost: bool,
    events: EventStream,
    reader: Reader,
    screen: Screen,
    render: Render,
    style: Style,
    /// A person sits at a terminal.
    terminal: bool,
    /// The run that goes on.
    run: Option<String>,
    operation: Option<Operation>,
    /// A command of the person's was given, and its beginning is not yet told. How it ends is told with its output.
    commanded: bool,
    /// Tool calls that wait for a person, the oldest first.
    approvals: VecDeque<Approval>,
    /// Those that were answered here.
    answered: HashSet<String>,
    /// The one about which the person was asked.
    asked: Option<String>,
    /// The session ends with the daemon.
    in_memory: bool,
    /// What was told of the session's warnings.
    warned: HashSet<String>,
    /// Whether the directory is trusted, which the person is asked first.
    trust: Option<TrustQuestion>,
    /// Ctrl-C was pressed, and what it was meant for still goes on.
    aborting: bool,
    /// Ctrl-C was pressed at the prompt.
    leaving: bool,
    /// Standard input has ended.
    ended: bool,
    /// What the next edited line begins with.
    initial: String,
    /// Lines that end in a backslash.
    unfinished: String,
    listed: Listed,
    exit: Option<Exit>,
}

/// The directory brings configuration of its own, of which nobody has said whether it counts.
struct TrustQuestion {
    files: Vec<String>,
    shown: bool,
}

/// What a person says of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    Yes,
    No,
}

enum Happening {
    Step(Result<Step, CallError>),
    Input(Input),
    Interrupt,
    Done(Done),
}

impl Repl {
    async fn serve(&mut self) -> anyhow::Result<Exit> {
        let mut interrupts = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        loop {
            if let Some(exit) = self.exit {
                return Ok(exit);
            }
            let happening = match self.ask().await? {
                Some(input) => Happening::Input(input),
                None if self.exit.is_some() => continue,
                None => {
                    let operation = &mut self.operation;
                    let operation = async move {
                        match operation {
                            Some(operation) => operation.await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        biased;
                        _ = interrupts.recv() => Happening::Interrupt,
                        _ = terminate.recv() => return Ok(Exit::Terminated),
                        _ = hangup.recv() => return Ok(Exit::Terminated),
                        step = self.events.step() => Happening::Step(step),
                        done = operation => Happening::Done(done),
                        input = self.reader.next() => Happening::Input(input),
                    }
                }
            };
            // A daemon that does not answer must not hold the person: a second Ctrl-C always leaves.
            let mut pressed = u32::from(matches!(happening, Happening::Interrupt));
            let aborting = pressed > 0;
            tokio::select! {
                result = self.happened(happening) => result?,
                () = async { while pressed < 2 { interrupts.recv().await; pressed += 1; } } => return Ok(Exit::Aborted),
            }
            if pressed == 1 && !aborting {
                self.interrupt().await?;
            }
        }
    }

    async fn happened(&mut self, happening: Happening) -> anyhow::Result<()> {
        match happening {
            Happening::Step(Ok(Step::Event(received))) => {
                self.event(&received.event.body, received.event.run_id.as_deref()).await
            }
            Happening::Step(Ok(Step::Lost(why))) => {
                self.is_lost = true;
                self.lost(&why)
            }
            Happening::Step(Ok(Step::Back)) => {
                self.is_lost = false;
                self.dim("connected again")?;
                let state = self.context.state(&self.session_id).await?;
                self.state(&state, None)
            }
            Happening::Step(Err(e)) => {
                let is_gone = e.api().and_then(|e| e.kind()) == Some(ErrorKind::SessionNotFound);
                if is_gone && self.made.is_some() {
                    return self.begin_anew().await;
                }
                self.is_lost = true;
                let why = match is_gone && self.in_memory {
                    true => "this session lived only in memory and ended with its daemon; `kli` begins another, and ↑ \
                             there brings back what you typed"
                        .to_owned(),
                    false => e.to_string(),
                };
                self.bad(&why)?;
                self.exit = Some(Exit::Error);
                Ok(())
            }
            Happening::Interrupt => self.interrupt().await,
            Happening::Done(done) => {
                self.operation = None;
                self.aborting = false;
                self.done(done)
            }
            Happening::Input(Input::Line(line)) => {
                self.leaving = false;
                if self.terminal {
                    self.render.entered();
                }
                self.line(line).await
            }
            Happening::Input(Input::Interrupt) => self.interrupt().await,
            Happening::Input(Input::End) => {
                self.ended = true;
                if self.terminal { self.leave(Exit::Done) } else { Ok(()) }
            }
            Happening::Input(Input::Cancelled) => Ok(()),
        }
    }

    fn is_busy(&self) -> bool {
        self.run.is_some() || self.operation.is_some()
    }

    /// Asks the person for what fits the moment. What comes back was said before.
    async fn ask(&mut self) -> anyhow::Result<Option<Input>> {
        if let Some(question) = &mut self.trust {
            if !std::mem::replace(&mut question.shown, true) {
                let files = question.files.clone();
                self.trust_question(&files)?;
            }
            return Ok(self.reader.ask(&Want::Line).await);
        }
        if let Some(approval) = self.approvals.front().cloned() {
            if self.ended {
                let reason = Some("nobody is there to allow it".to_owned());
                self.respond(Answer::Deny(reason)).await?;
                return Ok(None);
            }
            if self.asked.as_deref() != Some(approval.approval_id.as_str()) {
                self.asked = Some(approval.approval_id.clone());
                let shown = self.render.approval(&approval);
                self.show(&shown)?;
                self.question()?;
            }
            return Ok(self.reader.ask(&Want::Line).await);
        }
        self.asked = None;
        let want = match (self.is_busy(), self.ended) {
            (false, true) => {
                self.exit = Some(Exit::Done);
                return Ok(None);
            }
            (true, true) => Want::Nothing,
            // A script's next line is for after this.
            (true, false) if !self.terminal => Want::Nothing,
            (true, false) => Want::Line,
            (false, false) => Want::Edit(std::mem::take(&mut self.initial)),
        };
        if !self.reader.is_editing() && matches!(want, Want::Edit(_)) {
            // An edited line begins at the left.
            let mut start = self.render.fresh();
            if self.terminal && !self.reader.edits() && self.reader.is_idle() {
                start.push_str("> ");
            }
            self.show(&start)?;
        }
        Ok(self.reader.ask(&want).await)
    }

    async fn event(&mut self, body: &EventBody, run_id: Option<&str>) -> anyhow::Result<()> {
        match body {
            EventBody::Snapshot { session, run } => self.state(session, run.as_ref().map(|r| r.run_id.as_str()))?,
            EventBody::EntryAppended { entry } if !is_setting(entry) => self.made = None,
            EventBody::ModeChanged { .. } | EventBody::ModelChanged { .. } => self.chosen(body),
            EventBody::ToolStart { tool_call_id, .. } if self.commanded && run_id.is_none() => {
                self.commanded = false;
                self.render.tells_its_end(tool_call_id);
            }
            EventBody::RunStart { .. } => self.run = Some(run_id.unwrap_or_default().to_owned()),
            // The end of an older run may come after the beginning of the next was told.
            EventBody::RunEnd { .. } if self.run.as_deref().is_none_or(|run| run.is_empty() || Some(run) == run_id) => {
                self.run = None;
                self.aborting = false;
                self.approvals.clear();
            }
            EventBody::ApprovalRequested { approval } => {
                // After a lost connection it may be told twice: as state, and as what happened meanwhile.
                self.approvals.retain(|a| a.approval_id != approval.approval_id);
                self.approvals.push_back(approval.clone());
            }
            EventBody::ApprovalResolved { approval_id, decision, by, .. } => {
                self.resolved(approval_id, decision, by.as_deref())?;
            }
            EventBody::SessionInfoChanged { session } => self.warnings(session)?,
            EventBody::SessionDeleted {} => self.exit = Some(Exit::Error),
            _ => {}
        }
        let shown = self.render.event(body);
        self.show(&shown)
    }

    fn lost(&mut self, why: &str) -> anyhow::Result<()> {
        let what = match self.terminal && self.context.global.host.is_none() {
            true => "the next line starts it, if it does not come back",
            false => "trying to connect again",
        };
        self.dim(&format!("{why}; {what}"))
    }

    /// What goes on in the session, as the daemon says.
    fn state(&mut self, session: &SessionState, run_id: Option<&str>) -> anyhow::Result<()> {
        let runs = matches!(session.info.status, Status::Running | Status::Retrying | Status::WaitingForApproval);
        self.run = run_id.or(runs.then_some("")).map(str::to_owned);
        self.aborting &= self.is_busy();
        self.approvals = session.pending_approvals.iter().cloned().collect();
        if session.interrupted {
            self.dim("a crash cut a run off; /continue takes it up")?;
        }
        self.in_memory = !session.info.persisted;
        self.warnings(&session.info)
    }

    /// What is the matter with the session or with its directory's configuration, each thing once: rules that do
    /// not count, say.
    fn warnings(&mut self, info: &SessionInfo) -> anyhow::Result<()> {
        for warning in &info.warnings {
            if self.warned.insert(warning.message.clone()) {
                self.bad(&warning.message)?;
            }
        }
        Ok(())
    }

    /// A call does not wait any more; the first answer counts, from whichever client.
    fn resolved(&mut self, approval_id: &str, decision: &str, by: Option<&str>) -> anyhow::Result<()> {
        self.approvals.retain(|a| a.approval_id != approval_id);
        let was_asked = self.asked.as_deref() == Some(approval_id);
        if was_asked {
            self.asked = None;
        }
        if self.answered.remove(approval_id) || decision == "aborted" {
            return Ok(());
        }
        let what = match decision {
            "allow" => "allowed",
            "allowForSession" => "allowed for this session",
            "deny" => "denied",
            other => other,
        };
        let by = by.map(|by| format!(" by {}", super::text::one_line(by))).unwrap_or_default();
        if was_asked && self.terminal && !self.reader.is_editing() {
            self.show("\n")?;
        }
        self.dim(&format!("{what} elsewhere{by}"))
    }

    fn done(&mut self, done: Done) -> anyhow::Result<()> {
        match done {
            Done::Said(Ok(said)) => {
                let said = super::text::clean(&said).into_owned();
                if said.is_empty() { Ok(()) } else { self.line_out(&said) }
            }
            Done::Moved(Ok(moved)) => self.moved(moved),
            Done::Said(Err(e)) | Done::Moved(Err(e)) => {
                // One that was refused does not begin.
                self.commanded &= e.api().and_then(|e| e.kind()) == Some(ErrorKind::Aborted);
                self.bad(&e.to_string())
            }
        }
    }

    /// Text for the person to edit and send.
    fn offer(&mut self, prompt: Option<String>) -> anyhow::Result<()> {
        let Some(prompt) = prompt else { return Ok(()) };
        if !self.reader.edits() {
            return self.line_out(&transcript::prompt(&prompt, self.style));
        }
        // The editor shows it as it is.
        self.initial = super::text::clean(&prompt).into_owned();
        Ok(())
    }

    fn show(&mut self, text: &str) -> anyhow::Result<()> {
        Ok(self.screen.print(text, self.reader.is_editing())?)
    }

    fn line_out(&mut self, line: &str) -> anyhow::Result<()> {
        let text = self.render.line(line);
        self.show(&text)
    }

    fn dim(&mut self, line: &str) -> anyhow::Result<()> {
        let text = self.render.dim(line);
        self.show(&text)
    }

    fn bad(&mut self, line: &str) -> anyhow::Result<()> {
        let text = self.render.bad(&super::text::clean(line));
        self.show(&text)
    }
}

fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
