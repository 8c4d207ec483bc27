//! One server's life: start, hand-shake, list of tools, and the end; started again where it ends by itself.

use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kli_protocol::api::Warning;
use kli_protocol::error::in_full;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::model::{ClientCapabilities, ClientConfig, Implementation, PaginatedRequestParams};
use rmcp::service::{ClientInitializeError, NotificationContext, Peer, serve_client_with_ct};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, RoleClient};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Scene;
use super::settings::Resolved;
use super::tool::McpTool;
use super::watched::Watched;
use crate::text;
use crate::tool::process::{MARKER, Tree};
use crate::tool::{CommandError, Tool, shell};

/// After this a server that has not answered is called late; its tools come when it does.
const LATE: Duration = Duration::from_secs(5);
/// After this it is given up.
const GIVE_UP: Duration = Duration::from_secs(60);
/// How long a server may take to end by itself once its input is closed.
const GRACE: Duration = Duration::from_millis(500);
/// Pauses before a server that ended by itself is started again. One that lived for longer than [`STEADY`] starts over.
const PAUSES: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(30)];
const STEADY: Duration = Duration::from_secs(300);
/// Tools of one server.
const MOST_TOOLS: usize = 512;
/// Of what a program says on stderr, what an error shows.
const LAST_WORDS: usize = 500;
const CLOSED: &str = "it closed the connection";
const CONNECT: Duration = Duration::from_secs(20);

/// A server and its task.
pub(super) struct Server {
    shared: Arc<Shared>,
    cancel: CancellationToken,
    task: Option<JoinHandle<()>>,
}

/// What its tools and its task both know.
pub(super) struct Shared {
    pub name: String,
    /// A mutex, since runs ask for it while the task changes it, each for a moment.
    state: Mutex<State>,
    /// It has come, or failed.
    settled: CancellationToken,
    /// Told when a message of it was too long.
    pub dropped: Arc<Notify>,
}

#[derive(Default)]
struct State {
    /// While it can be called.
    peer: Option<Peer<RoleClient>>,
    tools: Vec<Arc<dyn Tool>>,
    /// Why it cannot be called.
    fault: Option<String>,
    /// The fault is final.
    is_gone: bool,
}

impl Server {
    pub fn start(name: String, address: Result<Resolved, String>, scene: Arc<Scene>) -> Server {
        let shared = Arc::new(Shared {
            name,
            state: Mutex::default(),
            settled: CancellationToken::new(),
            dropped: Arc::default(),
        });
        let cancel = CancellationToken::new();
        let life = Life { shared: shared.clone(), scene, cancel: cancel.clone() };
        let task = tokio::spawn(async move {
            match address {
                Ok(address) => life.live(&address).await,
                Err(reason) => life.fail(reason),
            }
        });
        Server { shared, cancel, task: Some(task) }
    }

    pub fn tools(&self) -> Vec<Arc<dyn Tool>> {
        self.shared.state().tools.clone()
    }

    pub fn warning(&self) -> Option<Warning> {
        let state = self.shared.state();
        Some(warning(&self.shared.name, state.fault.as_deref()?, state.is_gone))
    }

    pub fn settled(&self) -> impl Future<Output = ()> + Send + use<> {
        self.shared.settled.clone().cancelled_owned()
    }

    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Until its process is gone.
    pub async fn ended(mut self) {
        self.cancel();
        if let Some(task) = self.task.take() {
            let _ = task.await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To call it; else why that cannot be.
    pub fn peer(&self) -> Result<Peer<RoleClient>, String> {
        let state = self.state();
        state.peer.clone().ok_or_else(|| state.fault.clone().unwrap_or_else(|| "it is still starting".into()))
    }
}

fn warning(name: &str, fault: &str, is_gone: bool) -> Warning {
    let goes_on = if is_gone { "Its tools are left out." } else { "Its tools will be there when it is." };
    let message = format!("The MCP server {name} is not available: {fault}. {goes_on}");
    Warning { kind: "mcpServer".into(), message, path: None, offset: None }
}

/// How one start of a server went.
enum End {
    /// It was told to end.
    Told,
    /// It never was ready.
    Never(String),
    /// It was ready, and ended.
    Lost(String),
}

struct Life {
    shared: Arc<Shared>,
    scene: Arc<Scene>,
    cancel: CancellationToken,
}

impl Life {
    async fn live(self, address: &Resolved) {
        let mut pauses = VecDeque::from(PAUSES);
        loop {
            let began = Instant::now();
            let reason = match self.once(address).await {
                End::Told => break,
                End::Never(reason) => return self.fail(reason),
                End::Lost(reason) => reason,
            };
            if began.elapsed() > STEADY {
                pauses = PAUSES.into();
            }
            let Some(pause) = pauses.pop_front() else { return self.fail(reason) };
            self.fault(format!("{reason}; it is started again"), false);
            tokio::select! {
                () = self.cancel.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.shared.state().peer = None;
        self.shared.settled.cancel();
    }

    async fn once(&self, address: &Resolved) -> End {
        match address {
            Resolved::Program { .. } => self.program(address).await,
            Resolved::Http { url, headers } => {
                let client = match self.scene.clients.for_url(url, CONNECT) {
                    Ok(client) => client,
                    Err(failure) => return End::Never(failure.message),
                };
                let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
                let mut custom = std::collections::HashMap::new();
                for (name, value) in headers {
                    let header =
                        HeaderName::try_from(name.as_str()).ok().zip(HeaderValue::try_from(value.as_str()).ok());
                    let Some((name, mut value)) = header else {
                        return End::Never(format!("{name:?} is no header that can be sent"));
                    };
                    value.set_sensitive(true);
                    custom.insert(name, value);
                }
                config = config.custom_headers(custom);
                self.talk(StreamableHttpClientTransport::with_client(client, config)).await
            }
        }
    }

    async fn program(&self, address: &Resolved) -> End {
        let Started { mut child, tree, stderr } = match self.spawn(address) {
            Ok(started) => started,
            Err(reason) => return End::Never(reason),
        };
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return End::Never("its pipes are gone".into());
        };
        let words = tokio::spawn(last_words(stderr, self.shared.name.clone()));
        let end = self.talk(AsyncRwTransport::new(Watched::new(output, self.shared.dropped.clone()), input)).await;
        // Its input is closed by now: a well-behaved one ends.
        let exited = tokio::time::timeout(GRACE, child.wait()).await.ok().and_then(Result::ok);
        shell::end(&mut Some(child), tree).await;
        let words = tokio::time::timeout(GRACE, words).await.ok().and_then(Result::ok).unwrap_or_default();
        let with_words = |reason: String| {
            let reason = match exited.filter(|status| reason == CLOSED || !status.success()) {
                Some(status) => format!("it ended with exit code {}", shell::exit_code(status)),
                None => reason,
            };
            if words.is_empty() { reason } else { format!("{reason}, saying: {words}") }
        };
        match end {
            End::Told => End::Told,
            End::Never(reason) => End::Never(with_words(reason)),
            End::Lost(reason) => End::Lost(with_words(reason)),
        }
    }

    fn spawn(&self, address: &Resolved) -> Result<Started, String> {
        let Resolved::Program { command, args, env, cwd } = address else { return Err("it is no program".into()) };
        let dir = cwd.as_ref().map_or_else(|| self.scene.work_dir.clone(), |cwd| self.scene.work_dir.join(cwd));
        if !dir.is_dir() {
            return Err(format!("its directory {} does not exist", dir.display()));
        }
        let call = self.scene.jobs.next_call().map_err(|error| error.to_string())?;
        let mut program = Command::new(command);
        program
            .args(args)
            .current_dir(&dir)
            .envs(self.scene.env.iter().filter(|(name, value)| shell::is_variable(name, value)))
            .envs(env.iter().filter(|(name, value)| shell::is_variable(name, value)))
            .env(MARKER, &call)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = shell::start(program).map_err(|error| match error {
            CommandError::Spawn(error) => format!("{command} cannot be started: {error}"),
            error => error.to_string(),
        })?;
        let tree = Tree::new(child.id(), call);
        let stderr = child.stderr.take();
        Ok(Started { child, tree, stderr })
    }

    /// From the hand-shake to the end of the connection.
    async fn talk<T, E, A>(&self, transport: T) -> End
    where
        T: rmcp::transport::IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let changed = Arc::new(Notify::new());
        let handler = Handler { changed: changed.clone() };
        let began = Instant::now();
        let start = serve_client_with_ct(handler, transport, self.cancel.child_token());
        tokio::pin!(start);
        let mut is_late = false;
        let service = loop {
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => return End::Told,
                started = &mut start => match started {
                    Ok(service) => break service,
                    Err(error) => return End::Never(no_greeting(&error)),
                },
                () = tokio::time::sleep_until(began + LATE), if !is_late => {
                    is_late = true;
                    self.fault(format!("it has not answered in {} seconds", LATE.as_secs()), false);
                }
                () = tokio::time::sleep_until(began + GIVE_UP) => {
                    return End::Never(format!("it has not answered in {} seconds", GIVE_UP.as_secs()));
                }
            }
        };
        let (peer, token) = (service.peer().clone(), service.cancellation_token());
        match self.list(&peer).await {
            Ok(tools) => self.ready(peer.clone(), tools),
            Err(None) => return End::Told,
            Err(Some(reason)) => return End::Never(reason),
        }
        let ended = service.waiting();
        tokio::pin!(ended);
        loop {
            let listed = tokio::select! {
                biased;
                () = self.cancel.cancelled() => {
                    token.cancel();
                    let _ = tokio::time::timeout(GRACE, ended).await;
                    return End::Told;
                }
                _ = &mut ended => return End::Lost(CLOSED.into()),
                () = changed.notified() => self.list(&peer).await,
            };
            match listed {
                Ok(tools) => self.ready(peer.clone(), tools),
                Err(None) => return End::Told,
                Err(Some(reason)) => tracing::warn!(server = %self.shared.name, "{reason}"),
            }
        }
    }

    /// Its tools; the inner none of the error: it was told to end.
    async fn list(&self, peer: &Peer<RoleClient>) -> Result<Vec<rmcp::model::Tool>, Option<String>> {
        let has_tools = peer.peer_info().is_none_or(|info| info.capabilities.tools.is_some());
        if !has_tools {
            return Ok(vec![]);
        }
        let all = async {
            let mut tools = vec![];
            let mut cursor = None;
            loop {
                let page = PaginatedRequestParams::default().with_cursor(cursor);
                let mut page = peer.list_tools(Some(page)).await?;
                tools.append(&mut page.tools);
                cursor = page.next_cursor;
                if cursor.is_none() || tools.len() >= MOST_TOOLS {
                    tools.truncate(MOST_TOOLS);
                    return Ok::<_, rmcp::ServiceError>(tools);
                }
            }
        };
        tokio::select! {
            () = self.cancel.cancelled() => Err(None),
            listed = tokio::time::timeout(GIVE_UP, all) => match listed {
                Ok(Ok(tools)) => Ok(tools),
                Ok(Err(error)) => Err(Some(format!("it did not list its tools: {error}"))),
                Err(_) => Err(Some(format!("it did not list its tools in {} seconds", GIVE_UP.as_secs()))),
            },
        }
    }

    fn ready(&self, peer: Peer<RoleClient>, tools: Vec<rmcp::model::Tool>) {
        let tools =
            tools.into_iter().map(|tool| Arc::new(McpTool::new(tool, self.shared.clone())) as Arc<dyn Tool>).collect();
        *self.shared.state() = State { peer: Some(peer), tools, fault: None, is_gone: false };
        self.shared.settled.cancel();
        (self.scene.changed)(None);
    }

    fn fail(&self, reason: String) {
        self.fault(reason, true);
        self.shared.settled.cancel();
    }

    fn fault(&self, reason: String, is_gone: bool) {
        tracing::warn!(server = %self.shared.name, is_gone, "MCP server: {reason}");
        let news = warning(&self.shared.name, &reason, is_gone);
        let mut state = self.shared.state();
        let tools = if is_gone { vec![] } else { std::mem::take(&mut state.tools) };
        *state = State { peer: None, tools, fault: Some(reason), is_gone };
        drop(state);
        (self.scene.changed)(Some(news));
    }
}

struct Started {
    child: Child,
    tree: Tree,
    stderr: Option<ChildStderr>,
}

/// Why there was no hand-shake.
fn no_greeting(error: &ClientInitializeError) -> String {
    match error {
        // A reply without a body leaves the colon in front of it.
        ClientInitializeError::TransportError { error, .. } => {
            in_full(error.error.as_ref()).trim_end_matches([':', ' ']).to_owned()
        }
        ClientInitializeError::ConnectionClosed(_) => CLOSED.to_owned(),
        ClientInitializeError::JsonRpcError(error) => format!("it answered {:?}", error.message),
        error => format!("it did not greet: {error}"),
    }
}

/// Reads to the end what a program says on stderr; the end of it, as one line.
async fn last_words(stderr: Option<ChildStderr>, server: String) -> String {
    let Some(mut stderr) = stderr else { return String::new() };
    let mut kept: Vec<u8> = vec![];
    let mut buffer = vec![0; 8 * 1024];
    while let Ok(n) = stderr.read(&mut buffer).await {
        if n == 0 {
            break;
        }
        let said = buffer.get(..n).unwrap_or_default();
        tracing::debug!(%server, "{}", String::from_utf8_lossy(said).trim_end());
        kept.extend_from_slice(said);
        let surplus = kept.len().saturating_sub(4 * LAST_WORDS);
        kept.drain(..surplus);
    }
    let words = text::one_line(&String::from_utf8_lossy(&kept), usize::MAX);
    let from = text::ceil_char_boundary(&words, words.len().saturating_sub(LAST_WORDS));
    words.get(from..).unwrap_or_default().to_owned()
}

/// What a server may tell us; it may ask nothing.
struct Handler {
    changed: Arc<Notify>,
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(ClientCapabilities::default(), Implementation::new("kli", env!("CARGO_PKG_VERSION")))
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed.notify_one();
    }
}
