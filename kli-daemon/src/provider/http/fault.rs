//! What can go wrong between us and a server, as a sentence and a kind.

use std::time::Duration;

use kli_protocol::api::RunErrorKind;
use reqwest::header::HeaderMap;

use crate::dialect::{Failure, failure, host};

/// A fault of the connection. The address is named by its host alone: the rest of it may hold secrets.
pub fn of_transport(error: &reqwest::Error, base_url: &str) -> Failure {
    let host = match base_url.split_once("://") {
        Some((_, rest)) => {
            rest.split(['/', '?', '#']).next().unwrap_or_default().rsplit('@').next().unwrap_or_default().to_owned()
        }
        None => host(base_url),
    };
    let cause = failure::quote(&root_cause(error));
    let lower = cause.to_ascii_lowercase();
    if error.is_builder() {
        return Failure::fatal(
            RunErrorKind::BadRequest,
            format!("The request to {host} cannot be made ({cause}). Check baseUrl and headers of the provider."),
        );
    }
    if lower.contains("certificate") || lower.contains("unknownissuer") || lower.contains("invalid peer") {
        return Failure::fatal(
            RunErrorKind::Network,
            format!(
                "The certificate of {host} is not trusted ({cause}). Check baseUrl, the clock, and the machine's certificate authorities."
            ),
        );
    }
    if lower.contains("corrupt message") || lower.contains("invalidcontenttype") {
        return Failure::fatal(
            RunErrorKind::Network,
            format!(
                "{host} does not speak TLS ({cause}). Write http:// instead of https:// in baseUrl, if it is a local server."
            ),
        );
    }
    if error.is_timeout() {
        return Failure::passing(RunErrorKind::Timeout, format!("No connection to {host} within the time allowed."));
    }
    if error.is_connect() {
        return Failure::passing(
            RunErrorKind::Network,
            format!("No connection to {host} ({cause}). Check that the server runs, and the network."),
        );
    }
    Failure::passing(RunErrorKind::Network, format!("The connection to {host} broke ({cause})."))
}

/// The innermost reason: the outer ones only say that there was one.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    let mut depth = 0;
    while let Some(inner) = cause.source() {
        cause = inner;
        depth += 1;
        if depth > 16 {
            break;
        }
    }
    // Only the outermost error names the URL.
    if depth == 0 { "no reason given".to_owned() } else { cause.to_string() }
}

pub fn silence(idle: Duration) -> Failure {
    Failure::passing(
        RunErrorKind::Timeout,
        format!("The provider sent nothing for {} s (idleTimeoutMs).", idle.as_secs_f32()),
    )
}

pub fn cut_short(empty: bool) -> Failure {
    let what = if empty {
        "The provider closed the connection without a reply."
    } else {
        "The reply broke off in the middle."
    };
    Failure::passing(RunErrorKind::Network, what)
}

/// A whole body that is neither a reply nor an error that we know.
pub fn no_reply(body: &str) -> Failure {
    let said = failure::quote(body);
    Failure::passing(RunErrorKind::Network, format!("The provider's answer holds no reply of a model: {said}"))
}

pub fn too_large(what: &str) -> Failure {
    Failure::fatal(RunErrorKind::BadRequest, format!("The provider sent too much: {what}."))
}

/// How long the headers ask us to wait.
pub fn wait_asked_for(headers: &HeaderMap, now_ms: u64) -> Option<u64> {
    let value = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(ms) = value("retry-after-ms").and_then(|ms| ms.trim().parse::<f64>().ok()) {
        return (ms.is_finite() && ms > 0.0).then_some(ms.min(1e12) as u64);
    }
    failure::retry_after(value("retry-after")?, now_ms)
}
