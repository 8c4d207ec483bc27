//! Lines from the person: a thread that edits them (a terminal, nothing goes on), or takes them as they come.
//!
//! While a run prints, the terminal's own line discipline does the editing, Ctrl-C is a signal, and a wait for a
//! line can be called off; an edited line cannot be, so what is printed then goes above it (see `Printer`).

use std::cell::RefCell;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc as std_mpsc;

use rustix::event::{PollFd, PollFlags, poll};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{CompletionType, Config, Editor, ExternalPrinter, Helper};
use tokio::sync::mpsc;

use super::complete::{self, Shared};

/// Messages that wait to be printed above an edited line; more are dropped, as the terminal does not take them.
const PRINT_QUEUE: usize = 4096;
/// The longest line that is taken.
const MAX_LINE: usize = 8 << 20;

/// What the person did.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    Line(String),
    /// Ctrl-C while editing.
    Interrupt,
    End,
    /// The wait was called off.
    Cancelled,
}

/// What is asked of the person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    Nothing,
    /// A line, edited where that is possible. It begins with this text.
    Edit(String),
    /// A line, as it comes.
    Line,
}

enum Order {
    Edit(String),
    /// With the number by which it can be called off.
    Line(u64),
}

/// The reading end of the person.
pub struct Reader {
    orders: std_mpsc::SyncSender<Order>,
    inputs: mpsc::Receiver<Input>,
    /// Orders for lines up to this number are called off.
    cancelled: Arc<AtomicU64>,
    wake: UnixStream,
    number: u64,
    asked: Want,
    /// Lines are edited.
    edits: bool,
    /// What Tab completes.
    pub known: Shared,
}

/// Prints above the line that is being edited.
pub type Printer = std_mpsc::SyncSender<String>;

impl Reader {
    /// Starts the thread. It ends with the process: a read of standard input cannot be waited for.
    pub fn start(edits: bool, history: Option<PathBuf>) -> anyhow::Result<(Reader, Option<Printer>)> {
        let (orders, taken) = std_mpsc::sync_channel(1);
        let (sender, inputs) = mpsc::channel(4);
        let (wake, woken) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        let cancelled = Arc::new(AtomicU64::new(0));
        let known = Shared::default();
        let (editor, printer) = if edits { editor(history.as_deref(), known.clone()) } else { (None, None) };
        let edits = editor.is_some();
        let lines = Lines { woken, cancelled: cancelled.clone(), buffer: Vec::new() };
        std::thread::spawn(move || serve(taken, sender, lines, editor, history));
        Ok((Reader { orders, inputs, cancelled, wake, number: 0, asked: Want::Nothing, edits, known }, printer))
    }

    /// Whether lines can be edited at all.
    pub fn edits(&self) -> bool {
        self.edits
    }

    /// Whether nothing is asked.
    pub fn is_idle(&self) -> bool {
        self.asked == Want::Nothing
    }

    /// Whether a line is being edited, above which has to be printed.
    pub fn is_editing(&self) -> bool {
        self.edits && matches!(self.asked, Want::Edit(_))
    }

    /// Makes sure that the right thing is asked. An edited line that was begun stays.
    /// What comes back was said before the wait could be called off.
    pub async fn ask(&mut self, want: &Want) -> Option<Input> {
        match (&self.asked, want) {
            (Want::Nothing, Want::Nothing) | (Want::Line, Want::Line) | (Want::Edit(_), _) => return None,
            (Want::Line, Want::Edit(_)) if !self.edits => return None,
            (Want::Nothing, _) => {}
            (Want::Line, _) => {
                if let Some(said) = self.call_off().await {
                    return Some(said);
                }
            }
        }
        let order = match want {
            Want::Nothing => return None,
            Want::Edit(text) if self.edits => Order::Edit(text.clone()),
            Want::Edit(_) | Want::Line => {
                self.number += 1;
                Order::Line(self.number)
            }
        };
        self.asked = want.clone();
        // The thread has taken all orders before: it answered each.
        let _ = self.orders.send(order);
        None
    }

    /// What the person does next; never, while nothing is asked.
    pub async fn next(&mut self) -> Input {
        if self.asked == Want::Nothing {
            std::future::pending::<()>().await;
        }
        let input = self.inputs.recv().await.unwrap_or(Input::End);
        self.asked = Want::Nothing;
        input
    }

    async fn call_off(&mut self) -> Option<Input> {
        self.cancelled.store(self.number, Ordering::SeqCst);
        // A byte that finds no room finds the thread awake.
        let _ = io::Write::write(&mut self.wake, b"x");
        match self.next().await {
            Input::Cancelled => None,
            said => Some(said),
        }
    }
}

type LineEditor = Editor<Help, FileHistory>;

fn editor(history: Option<&std::path::Path>, known: Shared) -> (Option<LineEditor>, Option<Printer>) {
    let config =
        Config::builder().history_ignore_space(true).completion_type(CompletionType::List).max_history_size(10_000);
    let Ok(config) = config.map(|c| c.build()) else { return (None, None) };
    let Ok(mut editor) = Editor::with_config(config) else { return (None, None) };
    editor.set_helper(Some(Help { known, ..Help::default() }));
    if let Some(path) = history {
        // There is none the first time.
        let _ = editor.load_history(path);
    }
    let printer = editor.create_external_printer().ok().map(|mut printer| {
        let (sender, messages) = std_mpsc::sync_channel::<String>(PRINT_QUEUE);
        // A thread of its own: printing waits for the editor, and the editor may be waiting for us.
        std::thread::spawn(move || {
            while let Ok(message) = messages.recv() {
                let _ = printer.print(message);
            }
        });
        sender
    });
    (Some(editor), printer)
}

fn serve(
    orders: std_mpsc::Receiver<Order>,
    inputs: mpsc::Sender<Input>,
    mut lines: Lines,
    mut editor: Option<LineEditor>,
    history: Option<PathBuf>,
) {
    while let Ok(order) = orders.recv() {
        let input = match (order, &mut editor) {
            (Order::Edit(initial), Some(editor)) => edit(editor, &initial, history.as_deref()),
            (Order::Edit(_), None) => lines.next(u64::MAX),
            (Order::Line(number), _) => lines.next(number),
        };
        if inputs.blocking_send(input).is_err() {
            return;
        }
    }
}

fn edit(editor: &mut LineEditor, initial: &str, history: Option<&std::path::Path>) -> Input {
    let mut begun = initial.to_owned();
    let read = loop {
        match editor.readline_with_initial("> ", (&begun, "")) {
            // Bytes that are no UTF-8 end the editor's line; the person's goes on without them.
            Err(ReadlineError::Io(e)) if e.kind() == io::ErrorKind::InvalidData => {
                begun = editor.helper().map(|help| help.line.borrow().clone()).unwrap_or_default();
            }
            other => break other,
        }
    };
    match read {
        Ok(line) => {
            if !line.trim().is_empty()
                && editor.add_history_entry(line.as_str()).unwrap_or(false)
                && let Some(path) = history
            {
                // A history that cannot be written is missed, not mourned.
                let _ = editor.append_history(path);
            }
            Input::Line(line)
        }
        Err(ReadlineError::Interrupted) => Input::Interrupt,
        Err(_) => Input::End,
    }
}

/// Lines as they come, from a terminal or a pipe.
struct Lines {
    woken: UnixStream,
    cancelled: Arc<AtomicU64>,
    buffer: Vec<u8>,
}

impl Lines {
    fn next(&mut self, number: u64) -> Input {
        let mut drain = [0; 64];
        while matches!((&self.woken).read(&mut drain), Ok(n) if n > 0) {}
        loop {
            if let Some(at) = self.buffer.iter().position(|b| *b == b'\n') {
                let rest = self.buffer.split_off(at + 1);
                let line = std::mem::replace(&mut self.buffer, rest);
                return Input::Line(text(line));
            }
            if self.cancelled.load(Ordering::SeqCst) >= number {
                return Input::Cancelled;
            }
            let stdin = rustix::stdio::stdin();
            let mut fds = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(&self.woken, PollFlags::IN)];
            if poll(&mut fds, None).is_err() || !fds[1].revents().is_empty() {
                continue;
            }
            let mut piece = [0; 8192];
            let read = rustix::io::read(stdin, &mut piece);
            match read {
                Ok(n) if n > 0 && self.buffer.len() < MAX_LINE => {
                    self.buffer.extend_from_slice(piece.get(..n).unwrap_or_default());
                }
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                // The last line may lack its end.
                _ if !self.buffer.is_empty() => return Input::Line(text(std::mem::take(&mut self.buffer))),
                _ => return Input::End,
            }
        }
    }
}

fn text(mut line: Vec<u8>) -> String {
    while line.last().is_some_and(|b| matches!(b, b'\n' | b'\r')) {
        line.pop();
    }
    String::from_utf8_lossy(&line).into_owned()
}

/// What the editor knows of our lines: what Tab completes, and that a backslash at the end goes on.
#[derive(Default)]
struct Help {
    /// The line as it stands: the editor asks for a hint at each change, and an error would take it along.
    line: RefCell<String>,
    known: Shared,
}

impl Completer for Help {
    type Candidate = String;

    fn complete(&self, line: &str, pos: usize, _: &rustyline::Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(complete::complete(line.get(..pos).unwrap_or_default(), &self.known.get()))
    }
}

impl Validator for Help {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if context.input().ends_with('\\') { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Hinter for Help {
    type Hint = String;

    fn hint(&self, line: &str, _: usize, _: &rustyline::Context<'_>) -> Option<String> {
        line.clone_into(&mut self.line.borrow_mut());
        None
    }
}

impl Highlighter for Help {}

impl Helper for Help {}
