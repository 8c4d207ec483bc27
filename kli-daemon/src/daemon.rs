//! The composition root: builds the daemon from its parts, runs it, and ends them in order.
//!
//! Start: configuration, log, socket directory, locks, store, models, sessions, socket. Stop: no new sessions,
//! runs aborted and written, replies in flight sent, connections closed, socket removed, locks given up.

use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures_util::future::{BoxFuture, FutureExt};
use kli_protocol::ApiError;
use kli_protocol::api::Mode;
use kli_protocol::error::in_full;
use kli_protocol::paths::SocketPathSources;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::agent::RetrySettings;
use crate::clock::{Clock, SystemClock};
use crate::config::{Compaction, Config, Sources};
use crate::lock;
use crate::provider::Models;
use crate::provider::http::Clients;
use crate::provider::registry::{Registry as ModelRegistry, Surroundings};
use crate::rpc::methods::{Context, Control};
use crate::rpc::{self, Connections, Limits, Server};
use crate::session::client_tools::ClientTools;
use crate::session::hub::Hub;
use crate::session::trust::Trust;
use crate::session::{CompactionSettings, Deps, ProjectSettings, Registry, Settings};
use crate::store::{Store, StoreSettings};
use crate::telemetry::{self, LogTo};
use crate::tool;
use crate::tool::policy::Rules;
use crate::tool::sandbox::Sandbox;

/// What the command line says.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub socket: Option<PathBuf>,
    pub session_dir: Option<String>,
    pub config: Option<PathBuf>,
    /// Log to stderr instead of a file.
    pub foreground: bool,
}

/// Runs the daemon until it is told to stop.
pub async fn run(options: Options) -> anyhow::Result<()> {
    // Beyond a limit on file sizes a write is to fail, not to end the daemon. A handler and no ignoring: commands
    // begin with the signal as it always was.
    let _file_size = signal(SignalKind::from_raw(libc::SIGXFSZ))?;
    let signals = Signals::catch()?;
    let dirs = directories::ProjectDirs::from("", "", "kli");
    let state_dir = dirs.as_ref().map(|d| d.state_dir().unwrap_or_else(|| d.data_local_dir()).to_owned());
    let config = load_config(&options)?;
    // What may stop the start comes before the socket: a client that connects is to be answered, not cut off.
    let first_settings = Arc::new(session_settings(&config)?);
    let log_to = match (&options.foreground, &state_dir) {
        (false, Some(dir)) => LogTo::Directory(dir.clone()),
        _ => LogTo::Stderr,
    };
    let filter = std::env::var(telemetry::FILTER_VARIABLE).ok();
    let _telemetry = telemetry::start(log_to, filter.as_deref())?;

    let activated = rpc::activated()?;
    let socket = match &activated {
        Some(bound) => bound.path().to_owned(),
        None => socket_path(&options, state_dir.clone())?,
    };
    rpc::prepare(&socket)?;
    let locks = Arc::new(lock::acquire(&socket, config.session_dir.as_deref())?);
    let store_settings =
        StoreSettings { durability: config.durability, max_memory_bytes: config.limits.max_memory_bytes };
    let store = Store::new(config.session_dir.as_deref(), store_settings)?;
    store.owned_by(locks.clone());
    let bound = match activated {
        Some(bound) => bound,
        None => rpc::bind(&socket)?,
    };

    // Commands of a daemon that was killed go on without anybody; the lock says that there is no other now.
    let orphans = tokio::task::block_in_place(tool::process::end_orphans);
    if orphans > 0 {
        tracing::warn!(orphans, "ended commands that an earlier daemon left running");
    }

    tell_sandbox(config.sandbox);
    tell_rules(&first_settings.rules);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let clients = Arc::new(Clients::default());
    let (models, watched_models) = watch::channel(model_table(&config, &clients, &clock));
    let (settings, watched_settings) = watch::channel(first_settings);
    let all = Arc::new(Hub::new(0, settings.borrow().max_subscriber_bytes));
    let limits = rpc_limits(&config);
    let named = named_limits(&limits, &config.limits);
    let (idle_exit, unload_after) = (config.idle_exit, config.unload_after);
    let config = Arc::new(RwLock::new(config));
    let deps = Arc::new(Deps {
        store,
        clock: clock.clone(),
        models: watched_models,
        settings: watched_settings,
        project: project_settings(config.clone()),
        tools: tool::builtin(),
        client_tools: Arc::new(ClientTools::default()),
        cache_dir: cache_dir(dirs.as_ref()),
        all,
        config_dir: dirs.as_ref().map(|d| d.config_dir().to_owned()),
        trust: Trust::load(state_dir.as_ref().map(|dir| dir.join("trusted.json"))),
        home: directories::BaseDirs::new().map(|d| d.home_dir().to_owned()),
    });
    let registry = Registry::new(deps);
    let connections = Connections::default();
    let stop = CancellationToken::new();
    let control = Arc::new(Daemon {
        options,
        config,
        models,
        settings,
        clients,
        clock,
        registry: registry.clone(),
        connections: connections.clone(),
        stop: stop.clone(),
        started: Instant::now(),
    });
    let context = Arc::new(Context {
        registry: registry.clone(),
        control: control.clone(),
        max_message_bytes: limits.max_message_bytes,
        limits: named,
        socket: socket.display().to_string(),
    });
    // The socket is served a moment longer than the sessions: replies to those who wait still go out.
    let serving = CancellationToken::new();
    let server = Server { module: rpc::methods::module(context), limits, connections, stop: serving.clone() };
    let serve = tokio::spawn(server.run(bound));
    tracing::info!(socket = %socket.display(), pid = std::process::id(), "ready");
    rpc::notify_ready();

    tokio::select! {
        stopped = wait_for_stop(&control, idle_exit, signals) => stopped?,
        () = registry.keep_unloading(unload_after) => {}
    }

    tracing::info!("stopping");
    rpc::notify_stopping();
    registry.stop().await;
    serving.cancel();
    serve.await.context("the socket's task failed")?;
    Ok(())
}

/// The running daemon, as methods see it.
struct Daemon {
    options: Options,
    /// The last good configuration. A lock, since it is replaced as a whole by whoever reloads it.
    config: Arc<RwLock<Config>>,
    models: watch::Sender<Arc<dyn Models>>,
    settings: watch::Sender<Arc<Settings>>,
    clients: Arc<Clients>,
    clock: Arc<dyn Clock>,
    registry: Arc<Registry>,
    connections: Connections,
    stop: CancellationToken,
    started: Instant,
}

impl Daemon {
    /// Reads the configuration again; with a fault in it the old one stays.
    fn reload(&self) -> anyhow::Result<Vec<String>> {
        let new = load_config(&self.options)?;
        let settings = session_settings(&new)?;
        let changed = {
            let mut config = self.config.write().unwrap_or_else(std::sync::PoisonError::into_inner);
            let changed = config.diff(&new);
            if config.sandbox != new.sandbox {
                tell_sandbox(new.sandbox);
            }
            tell_rules(&settings.rules);
            self.models.send_replace(model_table(&new, &self.clients, &self.clock));
            self.settings.send_replace(Arc::new(settings));
            *config = new;
            changed
        };
        for key in changed.iter().filter(|key| FIXED.contains(&key.as_str())) {
            tracing::warn!(key, "this key takes effect when the daemon is started again");
        }
        Ok(changed)
    }
}

/// Keys that are looked at only at the start.
const FIXED: [&str; 7] =
    ["sessionDir", "durability", "maxMemoryBytes", "maxMessageBytes", "maxConnections", "idleExitMs", "unloadAfterMs"];

impl Control for Daemon {
    fn reload_config(&self) -> BoxFuture<'_, Result<Vec<String>, ApiError>> {
        async move {
            tokio::task::block_in_place(|| self.reload())
                .map_err(|e| ApiError::invalid_params(old_stays(&e)))
        }
        .boxed()
    }

    fn stop(&self) {
        self.stop.cancel();
    }

    fn stop_when_idle(&self) {
        let (registry, stop) = (self.registry.clone(), self.stop.clone());
        // Ends with the daemon: it does nothing but wait, and cancelling twice is once.
        tokio::spawn(async move {
            tokio::select! {
                () = registry.until_idle() => stop.cancel(),
                () = stop.cancelled() => {}
            }
        });
    }

    fn uptime_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn connections(&self) -> u64 {
        self.connections.count() as u64
    }
}

/// Signals that have a meaning. Caught before there is a socket: whoever was answered may send one.
struct Signals {
    term: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn catch() -> std::io::Result<Signals> {
        Ok(Signals {
            term: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }
}

/// Until a signal, `shutdown`, or a time in which nobody needed the daemon. SIGHUP reloads the configuration.
async fn wait_for_stop(daemon: &Arc<Daemon>, idle_exit: Option<Duration>, signals: Signals) -> anyhow::Result<()> {
    let Signals { mut term, mut interrupt, mut hangup } = signals;
    let idle = idle(daemon.clone(), idle_exit);
    tokio::pin!(idle);
    loop {
        tokio::select! {
            _ = term.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            () = daemon.stop.cancelled() => return Ok(()),
            () = &mut idle => return Ok(()),
            _ = hangup.recv() => match tokio::task::block_in_place(|| daemon.reload()) {
                Ok(changed) => tracing::info!(?changed, "configuration read again"),
                Err(error) => {
                    let told = old_stays(&error);
                    tracing::error!("{told}");
                    daemon.registry.warn("configuration", told);
                }
            },
        }
    }
}

fn old_stays(error: &anyhow::Error) -> String {
    format!("The old configuration stays: {}", in_full(error.as_ref()))
}

/// Ends when nobody was connected and nothing ran or lived only in memory for the time that is set.
async fn idle(daemon: Arc<Daemon>, after: Option<Duration>) {
    let Some(after) = after else { return std::future::pending().await };
    let step = (after / 4).clamp(Duration::from_millis(50), Duration::from_secs(60));
    let mut since = Instant::now();
    loop {
        tokio::time::sleep(step).await;
        let counts = daemon.registry.counts();
        if daemon.connections.count() > 0 || counts.running > 0 || counts.memory_only > 0 {
            since = Instant::now();
        } else if since.elapsed() >= after {
            return;
        }
    }
}

fn load_config(options: &Options) -> anyhow::Result<Config> {
    let env = |name: &str| std::env::var(name).ok();
    let flags = options.session_dir.iter().map(|dir| ("sessionDir".to_owned(), dir.clone())).collect();
    Ok(Config::load(&Sources { file: options.config.clone(), env: &env, flags })?)
}

fn socket_path(options: &Options, state_dir: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let sources = SocketPathSources {
        flag: options.socket.clone(),
        kli_socket: std::env::var_os("KLI_SOCKET"),
        xdg_runtime_dir: std::env::var_os("XDG_RUNTIME_DIR"),
        state_dir,
    };
    let path = sources
        .socket_path()
        .context("there is no place for the socket: neither --socket, KLI_SOCKET, XDG_RUNTIME_DIR nor HOME is set")?;
    Ok(std::path::absolute(path)?)
}

fn cache_dir(dirs: Option<&directories::ProjectDirs>) -> Option<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    let dir = dirs?.cache_dir().to_owned();
    match std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir) {
        Ok(()) => Some(dir),
        Err(error) => {
            tracing::warn!(path = %dir.display(), %error, "there is no cache directory; events of such sessions are lost at the end");
            None
        }
    }
}

fn model_table(config: &Config, clients: &Arc<Clients>, clock: &Arc<dyn Clock>) -> Arc<dyn Models> {
    let env = |name: &str| std::env::var(name).ok();
    let around = Surroundings { env: &env, clients: clients.clone(), clock: clock.clone() };
    Arc::new(ModelRegistry::new(&config.models, &around))
}

fn session_settings(config: &Config) -> anyhow::Result<Settings> {
    Ok(Settings {
        rules: session_rules(config)?,
        default_mode: config.default_mode,
        default_model: None,
        durability: config.durability,
        retry: RetrySettings { max_attempts: config.retry.max_attempts, base_delay_ms: config.retry.base_delay_ms },
        compaction: compaction_settings(config.compaction),
        max_subscriber_bytes: usize::try_from(config.limits.max_subscriber_bytes).unwrap_or(usize::MAX),
        sandbox: config.sandbox,
    })
}

fn session_rules(config: &Config) -> anyhow::Result<Rules> {
    let context = |key: &str| format!("{}: {key}", config.origin(key));
    let allow = Rules::parse(&config.approvals.allow, &[]).with_context(|| context("approvals.allow"))?;
    let deny = Rules::parse(&[], &config.approvals.deny).with_context(|| context("approvals.deny"))?;
    Ok(Rules { allow: allow.allow, deny: deny.deny })
}

/// A tool that nobody has may be a slip, or be offered later.
fn tell_rules(rules: &Rules) {
    for rule in rules.for_other_tools() {
        let builtin = tool::policy::BUILTIN.join(", ");
        tracing::warn!(%rule, builtin, "this rule counts only while an MCP server or a client offers its tool");
    }
}

/// What a project may say goes over what the person has set, and never allows more.
fn project_settings(config: Arc<RwLock<Config>>) -> Box<ProjectSettings> {
    Box::new(move |dir, own| {
        let config = config.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(project) = config.project(dir).map_err(|e| e.to_string())? else { return Ok(None) };
        let deny = Rules::parse(&[], &project.deny)
            .map_err(|e| format!("{}: approvals.deny: {e}", dir.join(".kli/config.toml").display()))?;
        let mut settings = own.clone();
        settings.rules.deny.extend(deny.deny);
        settings.compaction = compaction_settings(project.compaction.over(config.compaction));
        settings.default_model = project.default_model;
        settings.default_mode = match (own.default_mode, project.default_mode) {
            (Mode::Plan, _) | (_, None) => own.default_mode,
            (Mode::Ask | Mode::Auto, Some(wanted)) => wanted,
        };
        Ok(Some(settings))
    })
}

fn compaction_settings(compaction: Compaction) -> CompactionSettings {
    CompactionSettings {
        enabled: compaction.enabled,
        reserve_tokens: compaction.reserve_tokens,
        keep_recent_tokens: compaction.keep_recent_tokens,
    }
}

/// Every bound that a client may meet, by its name.
fn named_limits(rpc: &Limits, config: &crate::config::Limits) -> std::collections::BTreeMap<String, u64> {
    let mut named = rpc.named();
    named.insert("maxSubscriberBytes".into(), config.max_subscriber_bytes);
    named.insert("maxMemoryBytes".into(), config.max_memory_bytes);
    named
}

/// Says what of the sandbox this system does not hold, so that nobody believes in more than there is.
fn tell_sandbox(sandbox: Sandbox) {
    match sandbox.gaps() {
        Ok(gaps) if gaps.is_empty() => {}
        Ok(gaps) => tracing::warn!(%sandbox, gaps = gaps.join("; "), "the sandbox does not hold all here"),
        Err(error) => tracing::error!(%error),
    }
}

fn rpc_limits(config: &Config) -> Limits {
    Limits {
        max_message_bytes: usize::try_from(config.limits.max_message_bytes).unwrap_or(usize::MAX),
        max_connections: usize::try_from(config.limits.max_connections).unwrap_or(usize::MAX),
        ..Limits::default()
    }
}
