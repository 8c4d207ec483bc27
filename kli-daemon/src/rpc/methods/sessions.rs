//! Methods about sessions as wholes.

use std::path::Path;

use kli_protocol::ApiError;
use kli_protocol::api::{self, Empty, OpenSessionParams, SessionInfo};

use super::Context;
use crate::rpc::{Caller, Module, register};
use crate::session;

pub(super) fn register_all(module: &mut Module<Context>) {
    register::<api::CreateSession, _, _>(module, |context, _, params| async move {
        unsupported_servers(params.mcp_servers.is_some())?;
        context.registry.create(params).await
    });
    register::<api::ContinueSession, _, _>(module, |context, _, params| async move {
        context.registry.continue_session(&params.work_dir, params.create == Some(true)).await
    });
    register::<api::OpenSession, _, _>(module, |context, caller, params| async move {
        open(&context, &caller, params).await
    });
    register::<api::ListSessions, _, _>(
        module,
        |context, _, params| async move { context.registry.list(params).await },
    );
    register::<api::GetForest, _, _>(module, |context, _, params| async move { context.registry.forest(params).await });
    register::<api::GetSession, _, _>(module, |context, caller, params| async move {
        context.ask(&caller, &params.session_id, |actor| actor.state()).await
    });
    register::<api::SetSessionName, _, _>(module, |context, caller, params| async move {
        context
            .ask(&caller, &params.session_id, move |actor| {
                actor.set_name(&params.name)?;
                Ok(actor.info())
            })
            .await?
    });
    register::<api::ArchiveSession, _, _>(module, |context, caller, params| async move {
        context
            .ask(&caller, &params.session_id, move |actor| {
                actor.archive(params.archived)?;
                Ok(actor.info())
            })
            .await?
    });
    register::<api::DeleteSession, _, _>(module, |context, _, params| async move {
        context.registry.delete(&params.session_id).await?;
        Ok(Empty {})
    });
}

async fn open(context: &Context, caller: &Caller, params: OpenSessionParams) -> Result<SessionInfo, ApiError> {
    unsupported_servers(params.mcp_servers.is_some())?;
    let rebind = params.rebind.as_deref().map(session::canonical_dir).transpose()?;
    let handle = match (&params.session_id, &params.path) {
        (Some(id), None) => context.registry.find(id).await?,
        (None, Some(path)) if Path::new(path).is_absolute() => context.registry.open_path(Path::new(path)).await?,
        (None, Some(path)) => {
            return Err(ApiError::invalid_params(format!(
                "path: {path:?} is not absolute; the daemon's directory is not yours"
            )));
        }
        _ => return Err(ApiError::invalid_params("give either `sessionId` or `path`")),
    };
    let pending = handle
        .send(move |actor| {
            if let Some(work_dir) = rebind {
                actor.rebind(work_dir)?;
            }
            if let Some(env) = params.env {
                actor.set_env(env);
            }
            Ok::<_, ApiError>(())
        })
        .await?;
    caller.turn.done();
    pending.wait().await??;
    context.registry.used(&handle).await
}

fn unsupported_servers(given: bool) -> Result<(), ApiError> {
    match given {
        true => Err(ApiError::invalid_params("mcpServers: this version has no MCP client yet; leave it out")),
        false => Ok(()),
    }
}
