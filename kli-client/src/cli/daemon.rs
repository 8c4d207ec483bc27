//! `kli daemon`: start, stop, status, logs.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use kli_client::api::{self, StatusResult};
use kli_client::protocol::paths::{LOG_PREFIX, LOG_SUFFIX};
use kli_client::{Client, ConnectError, Connector, ErrorKind, socket};

use super::args::{Daemon, Global};
use super::context::connector;
use super::{Exit, out, text};

/// How long a daemon may take to end after it said that it would.
const STOP: Duration = Duration::from_secs(15);

pub async fn run(global: &Global, command: Daemon) -> anyhow::Result<Exit> {
    match command {
        Daemon::Start => start(global).await,
        Daemon::Stop { force, when_idle } => stop(global, force, when_idle).await,
        Daemon::Status => status(global).await,
        Daemon::Logs { follow, lines } => logs(follow, lines).await,
    }
}

async fn start(global: &Global) -> anyhow::Result<Exit> {
    let client = Client::connect(connector(global)?).await?;
    print_status(global, &client.call::<api::GetStatus>(api::NoParams {}).await?)
}

/// A client of the daemon that runs, of whatever version; none if none runs.
async fn running(global: &Global) -> anyhow::Result<Option<Client>> {
    let connector: Connector = connector(global)?.without_starting().any_protocol();
    match Client::connect(connector).await {
        Ok(client) => Ok(Some(client)),
        Err(ConnectError::NoDaemon { .. }) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

async fn stop(global: &Global, force: bool, when_idle: bool) -> anyhow::Result<Exit> {
    let Some(client) = running(global).await? else {
        out::note("no daemon runs");
        return Ok(Exit::Done);
    };
    let params = api::ShutdownParams { force: force.then_some(true), when_idle: when_idle.then_some(true) };
    if let Err(e) = client.call::<api::Shutdown>(params).await {
        let busy = e.api().filter(|e| e.kind() == Some(ErrorKind::DaemonBusy));
        let hint = match busy.map(|e| e.data.as_ref().is_some_and(|data| data["running"] == serde_json::json!([]))) {
            None => "",
            Some(true) => " (`kli export` keeps one, `--force` ends the daemon now)",
            Some(false) => " (`--when-idle` waits for the runs, `--force` ends the daemon now)",
        };
        bail!("{e}{hint}");
    }
    if when_idle {
        return Ok(Exit::Done);
    }
    if tokio::time::timeout(STOP, client.closed()).await.is_err() {
        bail!("the daemon said that it stops, and still runs after {} s", STOP.as_secs());
    }
    Ok(Exit::Done)
}

async fn status(global: &Global) -> anyhow::Result<Exit> {
    let Some(client) = running(global).await? else {
        let path = connector(global)?.socket().map(Path::to_owned).unwrap_or_default();
        if global.json {
            out::json(&serde_json::json!({ "running": false, "socket": path }))?;
        } else {
            out::line(&format!("no daemon runs at {}", path.display()))?;
        }
        return Ok(Exit::Error);
    };
    print_status(global, &client.call::<api::GetStatus>(api::NoParams {}).await?)
}

fn print_status(global: &Global, status: &StatusResult) -> anyhow::Result<Exit> {
    if global.json {
        out::json(status)?;
        return Ok(Exit::Done);
    }
    let seconds = status.uptime_ms / 1000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    let uptime = match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, m) => format!("{m} min"),
        (0, h, m) => format!("{h} h {m} min"),
        (d, h, _) => format!("{d} d {h} h"),
    };
    let kept = status.session_dir.as_deref().unwrap_or("in memory only (sessionDir is not set)");
    let sessions = &status.sessions;
    out::print(&text::clean(&format!(
        "kli-daemon {} runs as process {}, for {uptime}\nsocket:      {}\nsessions:    {kept}\n             {} open, {} running, {} only in memory\nconnections: {}\nmemory:      {:.1} MB\n",
        status.version,
        status.pid,
        status.socket,
        sessions.open,
        sessions.running,
        sessions.memory_only,
        status.connections,
        status.memory_bytes as f64 / 1e6,
    )))?;
    Ok(Exit::Done)
}

/// Prints the end of the newest log file, and with `follow` what is added to it or to newer ones.
async fn logs(follow: bool, lines: usize) -> anyhow::Result<Exit> {
    let dir = socket::state_dir().context("there is no state directory, as no home directory is set")?;
    let Some(mut path) = newest_log(&dir) else {
        bail!("there is no log in {}; a daemon that runs with --foreground logs to its standard error", dir.display());
    };
    let mut at = 0;
    print_tail(&path, lines, &mut at)?;
    if !follow {
        return Ok(Exit::Done);
    }
    loop {
        tokio::time::sleep(Duration::from_millis(250)).await;
        print_added(&path, &mut at)?;
        if let Some(newer) = newest_log(&dir).filter(|newer| *newer != path) {
            path = newer;
            at = 0;
        }
    }
}

fn newest_log(dir: &Path) -> Option<PathBuf> {
    let files = std::fs::read_dir(dir).ok()?.flatten();
    let is_log = |name: &str| {
        let day = name.strip_prefix(LOG_PREFIX).and_then(|rest| rest.strip_suffix(LOG_SUFFIX));
        day.is_some_and(|day| day.starts_with('.') && day.ends_with('.'))
    };
    let logs = files.filter(|f| is_log(&f.file_name().to_string_lossy()));
    let dated = logs.map(|f| {
        let changed = f.metadata().and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        (changed, f.path())
    });
    dated.max().map(|(_, path)| path)
}

/// The last lines; at most the last MiB is looked at.
fn print_tail(path: &Path, lines: usize, at: &mut u64) -> anyhow::Result<()> {
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(1 << 20)))?;
    let mut bytes = Vec::new();
    file.take(1 << 20).read_to_end(&mut bytes)?;
    *at = length;
    let content = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = content.lines().collect();
    for line in all.get(all.len().saturating_sub(lines)..).unwrap_or_default() {
        out::line(&text::clean(line))?;
    }
    Ok(())
}

fn print_added(path: &Path, at: &mut u64) -> anyhow::Result<()> {
    let Ok(mut file) = File::open(path) else { return Ok(()) };
    // A file that shrank was begun anew.
    *at = if file.metadata()?.len() < *at { 0 } else { *at };
    file.seek(SeekFrom::Start(*at))?;
    let mut bytes = Vec::new();
    *at += file.take(1 << 20).read_to_end(&mut bytes)? as u64;
    Ok(out::print(&text::clean(&String::from_utf8_lossy(&bytes)))?)
}
