//! Methods about runs and what happens in them.

use std::path::Path;
use std::time::Duration;

use base64::Engine;
use kli_protocol::api::{
    self, AbortResult, Approvals, Behavior, Empty, EntryIdResult, Image, ListJobsResult, ModelRef, PromptParams,
    PromptResult,
};
use kli_protocol::record::{Block, ImageBlock};
use kli_protocol::{ApiError, ErrorKind};

use super::Context;
use crate::rpc::{Caller, Module, register};
use crate::session::actor::{PromptAnswer, PromptOrder, ShellOrder, Started, check_option};
use crate::tool::image::{LARGEST_FILE, format_of, prepare};

/// An abort answers within this time; the run may take a moment longer to end.
const ABORT_ANSWERS: Duration = Duration::from_millis(900);
const MAX_KEY: usize = 64;
const MAX_IMAGES: usize = 20;

pub(super) fn register_all(module: &mut Module<Context>) {
    register::<api::Prompt, _, _>(
        module,
        |context, caller, params| async move { prompt(&context, &caller, params).await },
    );
    register::<api::Steer, _, _>(module, |context, caller, mut params| async move {
        params.behavior = Some(Behavior::Steer);
        prompt(&context, &caller, params).await
    });
    register::<api::FollowUp, _, _>(module, |context, caller, mut params| async move {
        params.behavior = Some(Behavior::FollowUp);
        prompt(&context, &caller, params).await
    });
    register::<api::WaitRun, _, _>(module, |context, caller, params| async move {
        let started =
            context.ask(&caller, &params.session_id, move |actor| actor.wait_run(params.run_id.as_deref())).await?;
        match started {
            Some(started) => finished(started).await.map(Some),
            None => Ok(None),
        }
    });
    register::<api::ContinueRun, _, _>(module, |context, caller, params| async move {
        let wait = params.wait == Some(true);
        let started = context.ask(&caller, &params.session_id, |actor| actor.continue_run()).await??;
        if wait { finished(started).await } else { Ok(started.result) }
    });
    register::<api::ClearQueue, _, _>(module, |context, caller, params| async move {
        context.ask(&caller, &params.session_id, |actor| actor.clear_queue()).await
    });
    register::<api::Abort, _, _>(module, |context, caller, params| async move {
        let ending =
            context.ask(&caller, &params.session_id, move |actor| actor.abort(params.run_id.as_deref())).await?;
        let Some(ending) = ending else { return Ok(AbortResult { aborted: false }) };
        let _ = tokio::time::timeout(ABORT_ANSWERS, ending).await;
        Ok(AbortResult { aborted: true })
    });
    register::<api::SetModel, _, _>(module, |context, caller, params| async move {
        let entry_id = context
            .ask(&caller, &params.session_id, move |actor| actor.set_model(params.provider, params.model_id))
            .await??;
        Ok(EntryIdResult { entry_id })
    });
    register::<api::SetOption, _, _>(module, |context, caller, params| async move {
        let entry_id = context
            .ask(&caller, &params.session_id, move |actor| actor.set_option(params.option_id, params.value))
            .await??;
        Ok(EntryIdResult { entry_id })
    });
    register::<api::SetMode, _, _>(module, |context, caller, params| async move {
        context.ask(&caller, &params.session_id, move |actor| actor.set_mode(params.mode)).await??;
        Ok(Empty {})
    });
    register::<api::RespondToApproval, _, _>(module, |context, caller, params| async move {
        let by = caller.name();
        context
            .ask(&caller, &params.session_id, move |actor| {
                actor.respond_to_approval(&params.approval_id, params.decision, params.message, by)
            })
            .await??;
        Ok(Empty {})
    });
    register::<api::Bash, _, _>(module, |context, caller, params| async move {
        if params.command.trim().is_empty() {
            return Err(ApiError::invalid_params("command: nothing to run"));
        }
        check_key(params.idempotency_key.as_deref())?;
        let order = ShellOrder {
            command: params.command,
            exclude_from_context: params.exclude_from_context,
            timeout: params.timeout_ms.map(Duration::from_millis),
            key: params.idempotency_key,
        };
        context.ask(&caller, &params.session_id, move |actor| actor.bash(order)).await??.wait().await?
    });
    register::<api::ListJobs, _, _>(module, |context, caller, params| async move {
        let jobs = context.ask(&caller, &params.session_id, |actor| actor.jobs()).await?;
        Ok(ListJobsResult { jobs })
    });
    register::<api::KillJob, _, _>(module, |context, caller, params| async move {
        let jobs = context.ask(&caller, &params.session_id, |actor| actor.job_table()).await?;
        jobs.kill(&params.job_id)
            .await
            .map_err(|e| ApiError::new(ErrorKind::CallNotFound, format!("{e}; listJobs shows those there are.")))?;
        Ok(Empty {})
    });
    register::<api::SubmitToolResult, _, _>(module, |context, _, params| async move {
        let is_error = params.is_error == Some(true);
        context.registry.deps.client_tools.submit(&params.call_id, params.content, is_error)?;
        Ok(Empty {})
    });
    register::<api::GetStats, _, _>(module, |context, caller, params| async move {
        let handle = context.reading(&caller, &params.session_id).await?;
        let context_use = handle.ask(|actor| actor.context_used()).await?;
        super::look(handle, move |log| crate::session::views::stats(log, context_use)).await
    });
}

async fn prompt(context: &Context, caller: &Caller, params: PromptParams) -> Result<PromptResult, ApiError> {
    let wait = params.wait == Some(true);
    let session = params.session_id.clone();
    let order = order(params).await?;
    let started = match context.ask(caller, &session, move |actor| actor.prompt(order)).await? {
        PromptAnswer::Now(started) => (*started)?,
        PromptAnswer::Later(answer) => answer
            .await
            .map_err(|_| ApiError::new(ErrorKind::ShuttingDown, "The session was closed; call again."))??,
    };
    if wait { finished(started).await } else { Ok(PromptResult { outcome: None, ..started.result }) }
}

/// The result with its second half, once the run has ended.
async fn finished(started: Started) -> Result<PromptResult, ApiError> {
    let mut result = started.result;
    if let Some(ended) = started.ended {
        let gone = |_| ApiError::new(ErrorKind::ShuttingDown, "The session was closed before its run ended.");
        result.outcome = Some(ended.await.map_err(gone)?);
    }
    Ok(result)
}

async fn order(params: PromptParams) -> Result<PromptOrder, ApiError> {
    if params.text.trim().is_empty() {
        return Err(ApiError::invalid_params("text: a prompt says something"));
    }
    check_key(params.idempotency_key.as_deref())?;
    let model = match (params.provider, params.model_id) {
        (Some(provider), Some(model_id)) => Some(ModelRef { provider, model_id }),
        (None, None) => None,
        _ => return Err(ApiError::invalid_params("give `provider` and `modelId` together")),
    };
    let options = params.options.unwrap_or_default();
    for (id, value) in &options {
        check_option(id, value)?;
    }
    if params.max_turns == Some(0) {
        return Err(ApiError::invalid_params("maxTurns: at least 1"));
    }
    Ok(PromptOrder {
        text: params.text,
        typed: None,
        expand: params.expand == Some(true),
        images: images(params.images.unwrap_or_default()).await?,
        behavior: params.behavior,
        approvals: params.approvals.unwrap_or(Approvals::Wait),
        leaf_id: params.leaf_id,
        key: params.idempotency_key,
        model,
        options,
        max_turns: params.max_turns,
    })
}

pub(super) fn check_key(key: Option<&str>) -> Result<(), ApiError> {
    match key {
        Some(key) if key.is_empty() || key.chars().count() > MAX_KEY => {
            Err(ApiError::invalid_params(format!("idempotencyKey: 1 to {MAX_KEY} characters")))
        }
        _ => Ok(()),
    }
}

/// The images of a prompt, from bytes or files, as every provider takes them: one that is refused would be refused
/// again with every later request of the session.
async fn images(images: Vec<Image>) -> Result<Vec<Block>, ApiError> {
    if images.len() > MAX_IMAGES {
        return Err(ApiError::invalid_params(format!("images: at most {MAX_IMAGES}")));
    }
    if images.is_empty() {
        return Ok(vec![]);
    }
    // Reading and scaling takes its time; the call keeps its place in the order meanwhile.
    crate::session::blocking(move || images.into_iter().map(image_block).collect()).await?
}

fn image_block(image: Image) -> Result<Block, ApiError> {
    let (name, bytes) = match (image.data, image.path) {
        (Some(data), None) => {
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(data)
                .map_err(|e| ApiError::invalid_params(format!("images: data is no base64 ({e})")))?;
            ("data".to_owned(), bytes)
        }
        (None, Some(path)) => {
            let bytes = read_image(&path).map_err(|e| ApiError::invalid_params(format!("images: {path}: {e}")))?;
            (path, bytes)
        }
        _ => return Err(ApiError::invalid_params("images: each has either `data` and `mimeType`, or a `path`")),
    };
    // What the bytes are counts, not what they are said to be.
    let format = format_of(&bytes)
        .ok_or_else(|| ApiError::invalid_params(format!("images: {name}: no PNG, JPEG, GIF or WebP picture")))?;
    let picture = prepare(bytes, format).map_err(|e| ApiError::invalid_params(format!("images: {name}: {e}")))?;
    Ok(Block::Image(ImageBlock { data: picture.data, mime_type: picture.mime_type.to_owned() }))
}

fn read_image(path: &str) -> Result<Vec<u8>, String> {
    if !Path::new(path).is_absolute() {
        return Err("not absolute; the daemon's directory is not yours".into());
    }
    let size = std::fs::metadata(path).map_err(|e| e.to_string())?;
    if !size.is_file() || size.len() > LARGEST_FILE {
        return Err(format!("no plain file of at most {LARGEST_FILE} bytes"));
    }
    std::fs::read(path).map_err(|e| e.to_string())
}
