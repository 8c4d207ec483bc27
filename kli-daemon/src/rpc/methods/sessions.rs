//! Methods about sessions as wholes.

use std::collections::BTreeMap;

use kli_protocol::ApiError;
use kli_protocol::api::{self, Empty, ExportSessionResult, OpenSessionParams, SessionInfo};

use super::{Context, look};
use crate::rpc::{Caller, Module, register};
use crate::session;
use crate::store::Export;

pub(super) fn register_all(module: &mut Module<Context>) {
    register::<api::CreateSession, _, _>(module, |context, _, params| async move {
        check_env(params.env.as_ref())?;
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
    register::<api::Search, _, _>(module, |context, _, params| async move { context.registry.search(params).await });
    register::<api::ImportSession, _, _>(
        module,
        |context, _, params| async move { context.registry.import(params).await },
    );
    register::<api::ExportSession, _, _>(module, |context, caller, params| async move {
        let path = params.path.as_deref().map(session::absolute).transpose()?;
        let handle = context.reading(&caller, &params.session_id).await?;
        let max = context.max_message_bytes as u64 / 2;
        look(handle, move |log| {
            let leaf = session::views::branch_end(log, &params.leaf_id)?;
            let export = Export { format: params.format, leaf };
            match path {
                Some(path) => log
                    .export_file(export, &path)
                    .map(|()| ExportSessionResult { path: Some(path.display().to_string()), content: None }),
                None => log
                    .export_text(export, max)
                    .map(|content| ExportSessionResult { path: None, content: Some(content) }),
            }
            .map_err(session::api_error)
        })
        .await
    });
    register::<api::DeleteSession, _, _>(module, |context, _, params| async move {
        context.registry.delete(&params.session_id).await?;
        Ok(Empty {})
    });
}

async fn open(context: &Context, caller: &Caller, params: OpenSessionParams) -> Result<SessionInfo, ApiError> {
    let servers = session::mcp_settings(params.mcp_servers.as_ref())?;
    check_env(params.env.as_ref())?;
    let rebind = params.rebind.as_deref().map(session::canonical_dir).transpose()?;
    let handle = match (&params.session_id, &params.path) {
        (Some(id), None) => context.registry.find(id).await?,
        (None, Some(path)) => context.registry.open_path(&session::absolute(path)?).await?,
        _ => return Err(ApiError::invalid_params("give either `sessionId` or `path`")),
    };
    let handle = context.registry.opened(handle).await?;
    let pending = handle
        .send(move |actor| {
            if let Some(work_dir) = rebind {
                actor.rebind(work_dir)?;
            }
            if let Some(env) = params.env {
                actor.set_env(env);
            }
            if params.mcp_servers.is_some() {
                actor.set_servers(servers);
            }
            Ok::<_, ApiError>(())
        })
        .await?;
    caller.turn.done();
    pending.wait().await??;
    context.registry.used(&handle).await
}

/// A process can be given no other variables.
fn check_env(env: Option<&BTreeMap<String, String>>) -> Result<(), ApiError> {
    let odd =
        |(name, value): &(&String, &String)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0');
    match env.into_iter().flatten().find(odd) {
        Some((name, _)) => Err(ApiError::invalid_params(format!("env: {name:?} cannot be set: no `=` and no NUL"))),
        None => Ok(()),
    }
}
