//! `job_output` and `job_kill`: how a model looks after its background commands.

use std::path::Path;
use std::time::Duration;

use futures_util::future::BoxFuture;
use kli_protocol::api::{Job, JobStatus};
use serde_json::json;

use super::read::with_notes;
use super::{Arguments, Effect, Outline, Tool, ToolContext, ToolOutput, ToolSpec, args};
use crate::text::{self, Limits};

/// The longest that a model may wait for a job in one call, in seconds.
const LONGEST_WAIT: f64 = 600.0;

pub(crate) struct JobOutput {
    spec: ToolSpec,
}

impl JobOutput {
    pub(crate) fn new() -> JobOutput {
        let description = "Show the end of what a background job printed and whether it still runs. Without jobId: \
                           list all jobs. With wait: first wait that many seconds for its end."
            .to_owned();
        let parameters = json!({
            "type": "object",
            "properties": {
                "jobId": {"type": "string", "description": "The job, as bash named it"},
                "wait": {"type": "number", "description": "Seconds to wait for its end (default 0, at most 600)"},
            },
        });
        JobOutput { spec: ToolSpec { name: "job_output".into(), description, parameters, effect: Effect::Reads } }
    }
}

impl Tool for JobOutput {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn outline(&self, arguments: &Arguments, _: &Path) -> Outline {
        title("job_output", arguments)
    }

    fn call<'a>(&'a self, arguments: Arguments, context: ToolContext) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            let job = args::optional_text(&arguments, "jobId");
            let wait = args::number(&arguments, "wait");
            let (job, wait) = match (job, wait) {
                (Ok(job), Ok(wait)) => (job, wait.unwrap_or(0.0).clamp(0.0, LONGEST_WAIT)),
                (Err(error), _) | (_, Err(error)) => return ToolOutput::error(error.to_string()),
            };
            let Some(job) = job else { return list(&context) };
            if wait > 0.0 {
                tokio::select! {
                    () = context.cancel.cancelled() => return super::aborted(),
                    _ = tokio::time::timeout(Duration::from_secs_f64(wait), context.jobs.ended(job)) => {}
                }
            }
            match context.jobs.get(job, Limits::OUTPUT) {
                Ok((job, truncated)) => show(job, truncated),
                Err(error) => unknown(&error, &context),
            }
        })
    }
}

pub(crate) struct JobKill {
    spec: ToolSpec,
}

impl JobKill {
    pub(crate) fn new() -> JobKill {
        let parameters = json!({
            "type": "object",
            "properties": {"jobId": {"type": "string", "description": "The job, as bash named it"}},
            "required": ["jobId"],
        });
        let description = "End a background job with all its processes.".to_owned();
        JobKill { spec: ToolSpec { name: "job_kill".into(), description, parameters, effect: Effect::Executes } }
    }
}

impl Tool for JobKill {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn outline(&self, arguments: &Arguments, _: &Path) -> Outline {
        title("job_kill", arguments)
    }

    fn call<'a>(&'a self, arguments: Arguments, context: ToolContext) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            let job = match args::text(&arguments, "jobId") {
                Ok(job) => job,
                Err(error) => return ToolOutput::error(error.to_string()),
            };
            if let Err(error) = context.jobs.kill(job).await {
                return unknown(&error, &context);
            }
            match context.jobs.get(job, Limits::OUTPUT) {
                Ok((job, truncated)) => ToolOutput { is_error: false, ..show(job, truncated) },
                Err(error) => unknown(&error, &context),
            }
        })
    }
}

fn title(tool: &str, arguments: &Arguments) -> Outline {
    let job = args::text(arguments, "jobId").unwrap_or_default();
    Outline { title: text::one_line(&format!("{tool} {job}"), 200), ..Outline::default() }
}

fn show(job: Job, truncated: bool) -> ToolOutput {
    let mut notes = Vec::new();
    if truncated {
        notes.push("Only the end of the output.".to_owned());
    }
    notes.push(format!("{} {}.", job.job_id, state(&job)));
    let body = if job.output.trim().is_empty() { "(no output)" } else { &job.output };
    let mut output = ToolOutput::text(with_notes(body, &notes));
    output.details = Some(json!({ "jobId": job.job_id, "status": job.status, "exitCode": job.exit_code }));
    output
}

fn state(job: &Job) -> String {
    match (job.status, job.exit_code) {
        (JobStatus::Running, Some(code)) => {
            format!("still runs: its shell exited with code {code}, what it started goes on")
        }
        (JobStatus::Running, None) => "still runs".to_owned(),
        (JobStatus::Exited, Some(code)) => format!("exited with code {code}"),
        (JobStatus::Exited, None) => "exited".to_owned(),
        (JobStatus::Killed, _) => "was killed".to_owned(),
    }
}

fn list(context: &ToolContext) -> ToolOutput {
    let jobs = context.jobs.list();
    if jobs.is_empty() {
        return ToolOutput::text("There are no background jobs.");
    }
    let lines: Vec<_> = jobs
        .iter()
        .map(|job| format!("{} {}: {}", job.job_id, state(job), text::one_line(&job.command, 200)))
        .collect();
    ToolOutput::text(lines.join("\n"))
}

fn unknown(error: &super::jobs::JobError, context: &ToolContext) -> ToolOutput {
    let jobs: Vec<_> = context.jobs.list().into_iter().map(|job| job.job_id).collect();
    let known = if jobs.is_empty() { "none".to_owned() } else { jobs.join(", ") };
    ToolOutput::error(format!("Error: {error}. Jobs: {known}."))
}
