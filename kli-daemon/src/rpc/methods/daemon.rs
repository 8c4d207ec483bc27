//! Methods about the daemon itself.

use kli_protocol::api::{
    self, Empty, InitializeResult, ListCommandsResult, ListModelsResult, PingResult, ReloadConfigResult, StatusResult,
};
use kli_protocol::{ApiError, ErrorKind, PROTOCOL_VERSION};

use std::path::Path;

use super::Context;
use crate::rpc::{Module, register};
use crate::session;
use crate::workspace::Workspace;

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(super) fn register_all(module: &mut Module<Context>) {
    register::<api::Ping, _, _>(module, |_, _, _| async {
        Ok(PingResult { version: VERSION.into(), protocol_version: PROTOCOL_VERSION, pid: std::process::id() })
    });
    register::<api::Initialize, _, _>(module, |context, caller, params| async move {
        if let Some(wanted) = params.protocol_version.filter(|v| *v != PROTOCOL_VERSION) {
            return Err(ApiError::invalid_params(format!(
                "protocolVersion: this daemon speaks {PROTOCOL_VERSION}, the client wants {wanted}; update the older one"
            )));
        }
        *caller.client.info.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(params.client_info);
        Ok(InitializeResult {
            version: VERSION.into(),
            protocol_version: PROTOCOL_VERSION,
            capabilities: serde_json::json!({ "events": true, "clientTools": true, "framings": ["newline", "contentLength", "http", "webSocket"] }),
            limits: context.limits.clone(),
            session_dir: session_dir(&context),
        })
    });
    register::<api::GetStatus, _, _>(module, |context, _, _| async move {
        Ok(StatusResult {
            pid: std::process::id(),
            version: VERSION.into(),
            uptime_ms: context.control.uptime_ms(),
            socket: context.socket.clone(),
            session_dir: session_dir(&context),
            sessions: context.registry.counts(),
            connections: context.control.connections(),
            memory_bytes: resident_bytes(),
        })
    });
    register::<api::Discover, _, _>(module, |_, _, _| async { Ok(crate::rpc::openrpc::document().clone()) });
    register::<api::ListModels, _, _>(module, |context, _, _| async move {
        let models = context.registry.deps.models();
        Ok(ListModelsResult { models: models.list(), default: models.default_model() })
    });
    register::<api::ListCommands, _, _>(module, |context, _, params| async move {
        let deps = context.registry.deps.clone();
        let work_dir = match (params.session_id, params.work_dir) {
            (Some(id), None) => context.session(&id).await?.log.facts().work_dir,
            (None, Some(dir)) => session::canonical(&dir)?,
            (None, None) => String::new(),
            (Some(_), Some(_)) => return Err(ApiError::invalid_params("give either `sessionId` or `workDir`")),
        };
        let found = session::blocking(move || Workspace::load(&deps.places(Path::new(&work_dir)))).await?;
        Ok(ListCommandsResult { commands: found.commands() })
    });
    register::<api::TrustWorkDir, _, _>(module, |context, _, params| async move {
        let dir = session::canonical_dir(&params.work_dir)?;
        let deps = context.registry.deps.clone();
        let said = dir.clone();
        session::blocking(move || deps.trust.set(Path::new(&said), params.trusted)).await?.map_err(|e| {
            ApiError::new(ErrorKind::StoreFailed, format!("What was said of the directory cannot be kept: {e}"))
        })?;
        context.registry.trust_changed(Path::new(&dir)).await?;
        Ok(Empty {})
    });
    register::<api::ReloadConfig, _, _>(module, |context, _, _| async move {
        Ok(ReloadConfigResult { changed: context.control.reload_config().await? })
    });
    register::<api::Shutdown, _, _>(module, |context, _, params| async move { shutdown(&context, params).await });
}

async fn shutdown(context: &Context, params: api::ShutdownParams) -> Result<Empty, ApiError> {
    let (running, memory_only) = (context.registry.running(), context.registry.memory_only());
    if params.force == Some(true) || (running.is_empty() && memory_only.is_empty()) {
        context.control.stop();
        return Ok(Empty {});
    }
    if params.when_idle == Some(true) && memory_only.is_empty() {
        context.control.stop_when_idle();
        return Ok(Empty {});
    }
    Err(ApiError::new(ErrorKind::DaemonBusy, busy(running.len(), memory_only.len()))
        .with("running", running)
        .with("memoryOnly", memory_only))
}

/// Why the daemon does not stop, and how it would.
fn busy(running: usize, memory_only: usize) -> String {
    let count = |n, one, many| if n == 1 { format!("1 session {one}") } else { format!("{n} sessions {many}") };
    let runs = count(running, "is running", "are running");
    let lost = count(memory_only, "lives only in memory and would be lost", "live only in memory and would be lost");
    match (running, memory_only) {
        (_, 0) => format!("{runs}; wait, or use `force`."),
        (0, _) => format!("{lost}; export what is to stay, or use `force`."),
        _ => format!("{runs}, {lost}; wait, export what is to stay, or use `force`."),
    }
}

fn session_dir(context: &Context) -> Option<String> {
    context.registry.deps.store.session_dir().map(|dir| dir.display().to_string())
}

/// Resident memory of this process; 0 where the system does not say.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line.and_then(|l| l.trim().split(' ').next()).and_then(|n| n.parse().ok()).unwrap_or_default();
    kib * 1024
}
