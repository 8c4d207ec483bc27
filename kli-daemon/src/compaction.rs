//! Compaction and branch summaries: a stretch of conversation goes to a model, a summary comes back.
//!
//! What to summarise is decided in [`crate::context`]; here are the requests, and the checks without which a
//! failed reply would replace a history. Nothing is stored: the session appends what comes out.

mod auto;
mod request;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use kli_protocol::api::{ModelInfo, RunErrorKind};
use kli_protocol::record::{BranchSummary, Compaction, Record, StopReason, Usage};
use kli_protocol::{ApiError, ErrorKind};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::context::estimate::{self, Budget};
use crate::context::{Cut, Item, Window, assemble, find_cut, transcript};
use crate::provider::{Failure, Provider};

pub use auto::Auto;

/// Requests that one summary may take; what needs more wants a larger model.
const MAX_REQUESTS: usize = 64;
/// How often the parts may be halved when the provider finds them too long after all.
const MAX_HALVINGS: u32 = 4;
/// Parts below this are not worth a request.
const MIN_PART: u64 = 256;
/// Longest wait before another attempt, unless the provider asks for more.
const MAX_DELAY: Duration = Duration::from_secs(30);

/// Who summarises, and how.
#[derive(Clone)]
pub struct Summarizer {
    pub provider: Arc<dyn Provider>,
    pub model: Arc<ModelInfo>,
    pub options: BTreeMap<String, Value>,
    pub budget: Budget,
    /// Attempts at one request in all, for failures that may pass.
    pub attempts: u32,
    pub base_delay: Duration,
    pub cache_key: String,
    /// Told before each wait for another attempt.
    pub on_retry: OnRetry,
}

pub type OnRetry = Arc<dyn Fn(Retry) -> BoxFuture<'static, ()> + Send + Sync>;

/// A request failed in a way that may pass, and is made again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The one that follows, counted from 1.
    pub attempt: u32,
    pub max_attempts: u32,
    pub delay_ms: u64,
    pub reason: String,
}

/// What a compaction comes to.
#[derive(Clone, Debug, PartialEq)]
pub struct Compacted {
    /// The record's body.
    pub compaction: Compaction,
    pub tokens_after: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum CompactionError {
    #[error("There is nothing to compact: the whole conversation is recent enough to be kept.")]
    NothingToCompact,
    #[error(
        "The model {model} returned no summary; the conversation stays as it was. Try again, or choose another model."
    )]
    Empty { model: String },
    #[error(
        "The summary was cut off by the output limit of {model}; the conversation stays as it was. Ask for a shorter one by instructions, or choose another model."
    )]
    CutOff { model: String },
    #[error(
        "The summary takes {summary} tokens, no fewer than the {replaced} that it would replace; the conversation stays as it was. Ask for a shorter one by instructions."
    )]
    NoSmaller { summary: u64, replaced: u64 },
    #[error(
        "The conversation is too long for {model} to summarize; choose a model with a larger context window, or navigate back."
    )]
    TooLong { model: String },
    #[error("The summary failed, and the conversation stays as it was: {}", .0.message)]
    Failed(Failure),
    #[error("Aborted before there was a summary; the conversation stays as it was.")]
    Aborted,
}

impl From<CompactionError> for ApiError {
    fn from(error: CompactionError) -> ApiError {
        let kind = match &error {
            CompactionError::NothingToCompact => ErrorKind::NothingToCompact,
            CompactionError::Aborted => ErrorKind::Aborted,
            CompactionError::Empty { .. }
            | CompactionError::CutOff { .. }
            | CompactionError::NoSmaller { .. }
            | CompactionError::TooLong { .. }
            | CompactionError::Failed(_) => ErrorKind::CompactionFailed,
        };
        ApiError::new(kind, error.to_string())
    }
}

/// What a compaction is about: a window, and where it is cut.
#[derive(Clone, Debug)]
pub struct Stretch {
    window: Window,
    /// Estimate of system prompt and tools.
    overhead: u64,
    cut: Cut,
}

impl Stretch {
    /// None: there is nothing to compact.
    pub fn of(window: Window, overhead: u64, budget: &Budget) -> Option<Stretch> {
        let cut = find_cut(&window, budget.kept(overhead))?;
        Some(Stretch { window, overhead, cut })
    }
}

/// Summarises all of a window but its end.
pub async fn compact(
    stretch: &Stretch,
    instructions: Option<&str>,
    by: &Summarizer,
    cancel: &CancellationToken,
) -> Result<Compacted, CompactionError> {
    let Stretch { window, overhead, cut } = stretch;
    let overhead = *overhead;
    let gone = window.items().get(..cut.at).unwrap_or_default();
    let request = transcript::request_before(window.items(), cut.at, window.summary_text());
    let job = Job {
        kind: if cut.splits_turn { request::Kind::SplitTurn } else { request::Kind::History },
        earlier: window.summary_text().map(|text| transcript::split_summary(text).0.to_owned()),
        texts: transcript::messages(gone).into(),
        instructions,
    };
    let (text, usage) = by.summarize(job, cancel).await?;
    let details = transcript::files(gone, window.details());
    let summary = transcript::compose(&text, &details, request.as_deref());
    let tokens = estimate::text(&crate::context::compaction_text(&summary));
    if tokens >= cut.tokens {
        return Err(CompactionError::NoSmaller { summary: tokens, replaced: cut.tokens });
    }
    let compaction = Compaction {
        summary,
        first_kept_entry_id: Some(cut.first_kept.clone()),
        first_kept_entry_index: None,
        tokens_before: assemble(window, &by.model).tokens(overhead),
        details: Some(details),
        usage: Some(usage),
    };
    let tokens_after = tokens_after(window, &compaction, overhead, &by.model);
    if tokens_after >= compaction.tokens_before {
        return Err(CompactionError::NoSmaller { summary: tokens_after, replaced: compaction.tokens_before });
    }
    Ok(Compacted { compaction, tokens_after })
}

/// Tokens of the next request once the compaction is stored.
fn tokens_after(window: &Window, compaction: &Compaction, overhead: u64, model: &ModelInfo) -> u64 {
    let mut window = window.clone();
    let body = kli_protocol::record::Body::Compaction(compaction.clone());
    // The id is one that no entry has.
    window.push(Arc::new(Item::from(Record::new("", None, "", body))));
    assemble(&window, model).tokens(overhead)
}

/// Summarises a path that is being left, as [`crate::context::cut::newest`] gave it: root → leaf, within
/// [`Summarizer::path_budget`]. `left_out`: the path had more. None: it says nothing worth a summary.
/// The caller fills in `from_id`.
pub async fn summarize_branch(
    path: &[Arc<Item>],
    left_out: bool,
    instructions: Option<&str>,
    by: &Summarizer,
    cancel: &CancellationToken,
) -> Result<Option<BranchSummary>, CompactionError> {
    let texts: VecDeque<String> = transcript::path(path).into();
    if texts.is_empty() {
        return Ok(None);
    }
    let kind = if left_out { request::Kind::EndOfPath } else { request::Kind::Path };
    let (text, usage) = by.summarize(Job { kind, earlier: None, texts, instructions }, cancel).await?;
    let details = transcript::files(path, path.iter().filter_map(|item| item.details()));
    let summary = transcript::compose(&text, &details, None);
    Ok(Some(BranchSummary { summary, from_id: String::new(), details: Some(details), usage: Some(usage) }))
}

/// One summary to be made.
struct Job<'a> {
    kind: request::Kind,
    earlier: Option<String>,
    texts: VecDeque<String>,
    instructions: Option<&'a str>,
}

impl Summarizer {
    /// How many tokens of a path that is left are read.
    pub fn path_budget(&self) -> u64 {
        self.part_size(0)
    }

    /// Tokens of conversation that fit into one request beside an earlier summary.
    fn part_size(&self, earlier: u64) -> u64 {
        let window = self.budget.assumed_window();
        // A tenth stays free: what is counted here are estimates.
        window
            .saturating_sub(self.output_limit())
            .saturating_sub(window / 10)
            .saturating_sub(request::OVERHEAD)
            .saturating_sub(earlier)
    }

    fn output_limit(&self) -> u64 {
        let most = self.budget.assumed_window() / 4;
        let own = if self.model.max_output == 0 { u64::MAX } else { self.model.max_output };
        (self.budget.reserve / 5 * 4).max(1_024).min(most).min(own)
    }

    /// Goes through the texts part by part, each summary carried into the next request.
    async fn summarize(
        &self,
        mut job: Job<'_>,
        cancel: &CancellationToken,
    ) -> Result<(String, Usage), CompactionError> {
        let mut usage = Usage::default();
        // An earlier summary that would crowd out the conversation is read like it.
        let most = self.budget.assumed_window() / 4;
        if let Some(long) = job.earlier.take_if(|earlier| estimate::text(earlier) > most) {
            job.texts.push_front(format!("[Summary of what came before]\n{long}"));
        }
        let too_long = || CompactionError::TooLong { model: self.model.model_id.clone() };
        let mut halvings = 0;
        for number in 1..=MAX_REQUESTS {
            let size = self.part_size(job.earlier.as_deref().map_or(0, estimate::text)) >> halvings;
            if size < MIN_PART {
                return Err(too_long());
            }
            let part = transcript::take_part(&mut job.texts, size);
            let part = request::Part { number, last: job.texts.is_empty(), text: part };
            match self.ask(&job, &part, cancel).await {
                Ok((text, used)) => {
                    usage += used;
                    if job.texts.is_empty() {
                        return Ok((text, usage));
                    }
                    job.earlier = Some(text);
                }
                Err(CompactionError::Failed(f))
                    if f.kind == RunErrorKind::ContextOverflow && halvings < MAX_HALVINGS =>
                {
                    halvings += 1;
                    job.texts.push_front(part.text);
                }
                Err(error) => return Err(error),
            }
        }
        Err(too_long())
    }

    /// One request, with further attempts when its failure may pass.
    async fn ask(
        &self,
        job: &Job<'_>,
        part: &request::Part,
        cancel: &CancellationToken,
    ) -> Result<(String, Usage), CompactionError> {
        let request = request::build(self, job, part);
        let mut attempt = 1;
        loop {
            let failure = match request::reply(&*self.provider, request.clone(), cancel).await {
                _ if cancel.is_cancelled() => return Err(CompactionError::Aborted),
                Ok(reply) => {
                    let text = reply.content.text().trim().to_owned();
                    let model = self.model.model_id.clone();
                    // What came before a refusal is no summary.
                    if let Some(why) = reply.error_message {
                        return Err(CompactionError::Failed(Failure::fatal(RunErrorKind::BadRequest, why)));
                    }
                    return match reply.stop_reason {
                        StopReason::Length => Err(CompactionError::CutOff { model }),
                        _ if text.is_empty() => Err(CompactionError::Empty { model }),
                        _ => Ok((text, reply.usage)),
                    };
                }
                Err(failure) => failure,
            };
            if !failure.retryable || attempt >= self.attempts {
                return Err(CompactionError::Failed(failure));
            }
            let own = self.base_delay.saturating_mul(1 << (attempt - 1).min(10));
            let delay = failure.retry_after_ms.map_or(own.min(MAX_DELAY), Duration::from_millis);
            attempt += 1;
            (self.on_retry)(Retry {
                attempt,
                max_attempts: self.attempts,
                delay_ms: u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
                reason: failure.message,
            })
            .await;
            tokio::select! {
                () = cancel.cancelled() => return Err(CompactionError::Aborted),
                () = tokio::time::sleep(delay) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
