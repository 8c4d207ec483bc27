//! Methods about the tree of one session.

use kli_protocol::ApiError;
use kli_protocol::api::{
    self, AppendEntryParams, CloneResult, EntryIdResult, ForkResult, RewindResult, SetLabelResult,
};

use super::{Context, look};
use crate::rpc::{Caller, Module, register};
use crate::session::actor::{Extension, ForkPoint, Navigated};
use crate::session::{ForkMade, views};

pub(super) fn register_all(module: &mut Module<Context>) {
    register::<api::GetTree, _, _>(module, |context, caller, params| async move {
        look(context.reading(&caller, &params.session_id).await?, move |log| views::tree(log, &params)).await
    });
    register::<api::GetEntries, _, _>(module, |context, caller, params| async move {
        let max = context.max_message_bytes;
        look(context.reading(&caller, &params.session_id).await?, move |log| views::entries(log, &params, max)).await
    });
    register::<api::GetBranch, _, _>(module, |context, caller, params| async move {
        look(context.reading(&caller, &params.session_id).await?, move |log| views::branch_page(log, &params)).await
    });
    register::<api::GetForkMessages, _, _>(module, |context, caller, params| async move {
        look(context.reading(&caller, &params.session_id).await?, move |log| views::fork_messages(log, &params)).await
    });
    register::<api::GetContext, _, _>(module, |context, caller, params| async move {
        context.ask(&caller, &params.session_id.clone(), move |actor| actor.context(&params)).await?
    });
    register::<api::NavigateTree, _, _>(module, |context, caller, params| async move {
        let moved =
            context.ask(&caller, &params.session_id.clone(), move |actor| actor.navigate_summarized(&params)).await??;
        match moved {
            Navigated::Now(result) => Ok(result),
            Navigated::Later(answer) => answer.wait().await?,
        }
    });
    register::<api::Fork, _, _>(module, |context, caller, params| async move {
        let point = ForkPoint::Entry { id: params.entry_id, position: params.position };
        let new = New { id: params.new_session_id, name: params.name, work_dir: params.work_dir };
        let made = fork(&context, &caller, &params.session_id, point, new).await?;
        Ok(ForkResult { session: made.session, text: made.text, images: made.images })
    });
    register::<api::CloneSession, _, _>(module, |context, caller, params| async move {
        let new = New { id: params.new_session_id, name: params.name, work_dir: params.work_dir };
        let made = fork(&context, &caller, &params.session_id, ForkPoint::Leaf, new).await?;
        Ok(CloneResult { session: made.session })
    });
    register::<api::Rewind, _, _>(module, |context, caller, params| async move {
        let point = ForkPoint::Prompt { id: params.entry_id };
        let new = New { id: params.new_session_id, name: params.name, work_dir: params.work_dir };
        let made = fork(&context, &caller, &params.session_id, point, new).await?;
        Ok(RewindResult { session: made.session, text: made.text.unwrap_or_default(), images: made.images })
    });
    register::<api::SetLabel, _, _>(module, |context, caller, params| async move {
        let previous = context
            .ask(&caller, &params.session_id.clone(), move |actor| actor.set_label(&params.entry_id, params.label))
            .await??;
        Ok(SetLabelResult { previous })
    });
    register::<api::Compact, _, _>(module, |context, caller, params| async move {
        let instructions = params.instructions;
        context
            .ask(&caller, &params.session_id, move |actor| actor.compact(instructions, &params.leaf_id))
            .await??
            .wait()
            .await?
    });
    register::<api::AppendEntry, _, _>(module, |context, caller, params| async move {
        append_entry(&context, &caller, params).await
    });
}

/// What fork, clone and rewind say of the new session.
struct New {
    id: Option<String>,
    name: Option<String>,
    work_dir: Option<String>,
}

async fn fork(
    context: &Context,
    caller: &Caller,
    session: &str,
    point: ForkPoint,
    new: New,
) -> Result<ForkMade, ApiError> {
    let order = context.registry.fork_order(new.id, new.name, new.work_dir)?;
    let handle = context.session(session).await?;
    let pending = context.registry.fork_at(&handle, point, order).await?;
    caller.turn.done();
    context.registry.fork(pending).await
}

async fn append_entry(
    context: &Context,
    caller: &Caller,
    params: AppendEntryParams,
) -> Result<EntryIdResult, ApiError> {
    if params.custom_type.is_empty() || params.custom_type.len() > 200 {
        return Err(ApiError::invalid_params("customType: 1 to 200 characters"));
    }
    super::runs::check_key(params.idempotency_key.as_deref())?;
    let extension = match (params.data, params.content) {
        (Some(data), None) => Extension::Data(data),
        (None, Some(content)) => Extension::Message { content, display: params.display == Some(true) },
        _ => return Err(ApiError::invalid_params("give either `data` or `content`")),
    };
    let entry_id = context
        .ask(caller, &params.session_id, move |actor| {
            actor.append_extension(params.custom_type, extension, params.leaf_id, params.idempotency_key)
        })
        .await??;
    Ok(EntryIdResult { entry_id })
}
