//! `bash`: a command, waited for or in the background.

use std::path::Path;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::json;

use super::args::{self, ArgumentError};
use super::read::with_notes;
use super::sandbox::Sandbox;
use super::{Arguments, CommandOutcome, Effect, Outline, Tool, ToolContext, ToolOutput, ToolSpec, run_command, shell};
use crate::text::{self, Limits};

pub(crate) struct Bash {
    spec: ToolSpec,
}

impl Bash {
    pub(crate) fn new() -> Bash {
        let description = format!(
            "Run a command in bash in the work directory. stdout and stderr come back together, at most {} lines or {} \
             KiB; of a longer output the beginning and the end, and all of it is kept in a file that is named then. There is no terminal and no \
             input: give everything on the command line. For a server or a long task set background: it goes on \
             after the call, job_output shows what it printed and job_kill ends it.",
            Limits::OUTPUT.lines,
            Limits::OUTPUT.bytes / 1024
        );
        let parameters = json!({
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The command"},
                "timeout": {"type": "number", "description": "Seconds after which it is ended (default: none)"},
                "background": {"type": "boolean", "description": "Return at once with a job id and let it run"},
            },
            "required": ["command"],
        });
        Bash { spec: ToolSpec { name: "bash".into(), description, parameters, effect: Effect::Executes } }
    }
}

impl Tool for Bash {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn outline(&self, arguments: &Arguments, _: &Path) -> Outline {
        let command = args::text(arguments, "command").unwrap_or_default();
        Outline { title: text::one_line(&format!("bash {command}"), 200), ..Outline::default() }
    }

    fn call<'a>(&'a self, arguments: Arguments, context: ToolContext) -> BoxFuture<'a, ToolOutput> {
        Box::pin(async move {
            let request = match Request::from(&arguments) {
                Ok(request) => request,
                Err(error) => return ToolOutput::error(error.to_string()),
            };
            if request.background {
                return start(request.command, &context);
            }
            match run_command(request.command, request.timeout, &context).await {
                Ok(outcome) => answer(outcome, request.timeout, context.sandbox),
                Err(error) => ToolOutput::error(error.to_string()),
            }
        })
    }
}

struct Request<'a> {
    command: &'a str,
    timeout: Option<Duration>,
    background: bool,
}

impl<'a> Request<'a> {
    fn from(arguments: &'a Arguments) -> Result<Request<'a>, ArgumentError> {
        let timeout = match args::number(arguments, "timeout")? {
            None => None,
            Some(seconds) if seconds > 0.0 => Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)),
            Some(_) => return Err(ArgumentError::Type("timeout", "more than 0 seconds")),
        };
        let command = args::text(arguments, "command")?;
        Ok(Request { command, timeout, background: args::flag(arguments, "background")? })
    }
}

fn start(command: &str, context: &ToolContext) -> ToolOutput {
    let started = shell::spawn(command, context)
        .map_err(|error| error.to_string())
        .and_then(|process| context.jobs.start(command, process).map_err(|error| error.to_string()));
    match started {
        Ok(id) => {
            let mut output = ToolOutput::text(format!(
                "Started in the background as {id}. job_output shows what it printed, job_kill ends it."
            ));
            output.details = Some(json!({ "jobId": id }));
            output
        }
        Err(error) => ToolOutput::error(error),
    }
}

fn answer(outcome: CommandOutcome, timeout: Option<Duration>, sandbox: Sandbox) -> ToolOutput {
    let mut notes = Vec::new();
    if outcome.truncated {
        let rest = match &outcome.full_output_path {
            Some(path) if outcome.full_output_incomplete => format!("The first 64 MiB of it: {}", path.display()),
            Some(path) => format!("All of it: {}", path.display()),
            None => "The rest could not be kept.".to_owned(),
        };
        notes.push(format!("Only the beginning and the end of {} lines of output. {rest}", outcome.total_lines));
    }
    if outcome.replaced {
        notes.push("Bytes that are not UTF-8 text, and NUL, are shown as U+FFFD.".to_owned());
    }
    if let Some(id) = &outcome.job_id {
        notes.push(format!(
            "Processes that it started still run, as background job {id}: job_output shows what they print, job_kill \
             ends them."
        ));
    }
    if outcome.cancelled {
        notes.push("Command aborted.".to_owned());
    }
    if outcome.timed_out {
        let seconds = timeout.unwrap_or_default().as_secs_f64();
        notes.push(format!("Command timed out after {seconds} seconds and was ended."));
    }
    match outcome.exit_code {
        Some(code) if code > 128 => notes.push(format!("Command exited with code {code} (signal {}).", code - 128)),
        Some(code) if code != 0 => notes.push(format!("Command exited with code {code}.")),
        _ => {}
    }
    if let (Some(1..), Some(hint)) = (outcome.exit_code, sandbox.hint()) {
        notes.push(hint.to_owned());
    }
    let body = if outcome.output.trim().is_empty() { "(no output)" } else { &outcome.output };
    let mut output = ToolOutput::text(with_notes(body, &notes));
    output.is_error = outcome.exit_code != Some(0);
    let mut details = json!({ "exitCode": outcome.exit_code });
    for (name, value) in [
        ("cancelled", outcome.cancelled.then(|| json!(true))),
        ("timedOut", outcome.timed_out.then(|| json!(true))),
        ("truncated", outcome.truncated.then(|| json!(true))),
        ("fullOutputPath", outcome.full_output_path.map(|path| json!(path.to_string_lossy()))),
        ("jobId", outcome.job_id.map(|id| json!(id))),
    ] {
        if let (Some(value), Some(details)) = (value, details.as_object_mut()) {
            details.insert(name.to_owned(), value);
        }
    }
    output.details = Some(details);
    output
}

#[cfg(test)]
mod tests;
