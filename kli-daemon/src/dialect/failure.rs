//! Errors of providers, by status, type and wording, into what the agent acts on and a person can use.
//!
//! No two providers say the same thing alike, and a wrong guess is costly: an unrecognised overflow kills a turn
//! that a compaction would save, an exhausted quota retried five times is a minute lost.

use std::borrow::Cow;

use kli_protocol::api::RunErrorKind;
use serde_json::{Value, json};

use super::Failure;

/// How much of a provider's own words is passed on.
const QUOTED: usize = 1_000;

/// An answer whose status is not 200. `retry_after_ms` is what its headers asked for.
pub fn of_status(status: u16, body: &str, retry_after_ms: Option<u64>) -> Failure {
    let parsed: Option<Value> = serde_json::from_str(body.trim()).ok();
    let error = parsed.as_ref().map(Error::read).unwrap_or_else(|| Error::plain(body));
    let retry_after_ms = retry_after_ms.or_else(|| parsed.as_ref().and_then(google_retry_delay));
    let mut failure = classify(Some(status), &error);
    failure.retry_after_ms = retry_after_ms.filter(|_| failure.retryable);
    bound_wait(failure)
}

/// The error in an event or a body of a stream that began well.
pub fn in_stream(event: &Value) -> Option<Failure> {
    told(event).map(|error| of_told(&error))
}

/// What an event that is called `error` says, in whatever form.
pub fn of_error_event(data: &str, event: Option<&Value>) -> Failure {
    match event {
        Some(event) => of_told(&told(event).unwrap_or_else(|| Cow::Owned(json!({ "error": event })))),
        None => classify(None, &Error::plain(data)),
    }
}

/// The event as one with the key `error`. Servers that speak one format say their errors in another, and behind a
/// 200 such an error that is passed over looks like the end of a reply.
fn told(event: &Value) -> Option<Cow<'_, Value>> {
    if let Some(first) = event.as_array().and_then(|list| list.first()) {
        return told(first);
    }
    let is_error = |error: &&Value| match error {
        Value::Null | Value::Bool(false) => false,
        Value::Object(map) => !map.is_empty(),
        _ => true,
    };
    if event.get("error").filter(is_error).is_some() {
        return Some(Cow::Borrowed(event));
    }
    let is = |key: &str| event.get(key).and_then(Value::as_str) == Some("error");
    // FastAPI and what is built on it; in a model's own events the word may mean anything.
    let detail = event.get("detail").is_some_and(|detail| !detail.is_null())
        && ["type", "choices", "candidates"].iter().all(|key| event.get(key).is_none());
    (is("type") || is("object") || detail).then(|| Cow::Owned(json!({ "error": event })))
}

fn of_told(event: &Value) -> Failure {
    let error = Error::read(event);
    let status = error.code.parse().ok().filter(|status| (400..600).contains(status));
    let mut failure = classify(status, &error);
    failure.retry_after_ms = google_retry_delay(event).filter(|_| failure.retryable);
    bound_wait(failure)
}

/// An event that should be JSON and is not.
pub fn not_json(data: &str, error: &serde_json::Error) -> Failure {
    let said = quote(data);
    Failure::passing(RunErrorKind::Network, format!("The provider sent an event that is no JSON ({error}): {said}"))
}

/// A body that is a web page.
pub fn web_page(body: &str) -> Failure {
    let title = title(body).map(|title| format!(" (\"{title}\")")).unwrap_or_default();
    Failure::fatal(
        RunErrorKind::BadRequest,
        format!(
            "The server answered with a web page{title} instead of a model's reply. Check baseUrl of the provider: it usually ends in /v1."
        ),
    )
}

/// What an error body says, wherever it says it.
#[derive(Debug, Default)]
struct Error {
    message: String,
    kind: String,
    code: String,
}

impl Error {
    fn read(body: &Value) -> Error {
        // Google wraps a list around it.
        let body = body.as_array().and_then(|list| list.first()).unwrap_or(body);
        let inner = match body.get("error") {
            Some(inner @ Value::Object(_)) => inner,
            Some(Value::String(message)) => {
                return Error { message: message.clone(), kind: word(body.get("type")), code: word(body.get("code")) };
            }
            _ => body,
        };
        let message =
            [inner.get("message"), inner.get("detail"), inner.get("msg"), inner.get("errors"), body.get("message")]
                .into_iter()
                .flatten()
                .find(|value| !value.is_null())
                .map(message_text)
                .unwrap_or_else(|| inner.to_string());
        let kind = [inner.get("type"), inner.get("status")].into_iter().flatten().find_map(Value::as_str);
        let codes = [inner.get("code"), inner.get("status"), body.get("code"), body.get("status")];
        let code = codes.into_iter().flatten().find(|code| code.is_number()).or(inner.get("code"));
        let mut error = Error { message, kind: kind.unwrap_or_default().to_owned(), code: word(code) };
        // OpenRouter hides the real provider's words.
        if let Some(raw) = inner.pointer("/metadata/raw").and_then(Value::as_str) {
            error.message = format!("{}: {raw}", error.message);
        }
        error
    }

    fn plain(body: &str) -> Error {
        let trimmed = body.trim();
        let message = if trimmed.starts_with('<') {
            title(trimmed).unwrap_or_else(|| "a web page".to_owned())
        } else {
            trimmed.to_owned()
        };
        Error { message, ..Error::default() }
    }
}

fn word(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    }
}

fn message_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(list) => {
            let texts = list.iter().map(|item| match item.get("msg").or(item.get("message")) {
                Some(inner) => message_text(inner),
                None => message_text(item),
            });
            texts.collect::<Vec<_>>().join("; ")
        }
        other => other.to_string(),
    }
}

fn classify(status: Option<u16>, error: &Error) -> Failure {
    use RunErrorKind as Kind;
    let said = quote(&error.message);
    let tag = format!("{} {}", error.kind, error.code).to_ascii_lowercase();
    let text = error.message.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word) || tag.contains(word));
    let answer = |status: Option<u16>| match status {
        Some(status) => format!("status {status}: {said}"),
        None => said.clone(),
    };

    if status == Some(402) || (status != Some(400) || tag.contains("quota")) && is_quota(&text, &tag) {
        return Failure::fatal(
            Kind::Quota,
            format!(
                "The provider says that the account has no credit or quota left ({said}). Top it up or choose another model."
            ),
        );
    }
    if status == Some(401)
        || says(&[
            "authentication_error",
            "invalid_api_key",
            "unauthenticated",
            "invalid api key",
            "incorrect api key",
            "api key not valid",
            "api_key_invalid",
        ])
    {
        return Failure::fatal(
            Kind::Auth,
            format!("The provider refuses the API key ({said}). Check the key that the configuration names."),
        );
    }
    if status == Some(403) || says(&["permission_error", "permission_denied"]) {
        return Failure::fatal(
            Kind::Auth,
            format!("The provider denies access ({said}). Check that the key may use this model."),
        );
    }
    // Larger than all that is allowed in a minute (Groq): waiting does not help, a smaller request does.
    let limited = status != Some(413)
        && (status == Some(429)
            || says(&[
                "rate_limit",
                "rate limit",
                "too many requests",
                "resource_exhausted",
                "tokens per minute",
                "requests per minute",
            ]));
    if limited {
        return Failure::passing(Kind::RateLimited, format!("The provider asks to slow down ({said})."));
    }
    if status == Some(413) || is_overflow(&text, &tag) {
        return Failure::fatal(Kind::ContextOverflow, format!("The conversation is too long for this model ({said})."));
    }
    if matches!(status, Some(503 | 529)) || says(&["overloaded", "unavailable", "at capacity", "engine_overloaded"]) {
        return Failure::passing(Kind::Overloaded, format!("The provider is overloaded ({}).", answer(status)));
    }
    match status {
        Some(408 | 504) => Failure::passing(Kind::Timeout, format!("The provider took too long ({}).", answer(status))),
        Some(409 | 425) => Failure::passing(Kind::Overloaded, format!("The provider is busy ({}).", answer(status))),
        Some(status @ 500..) => {
            Failure::passing(Kind::Overloaded, format!("The provider failed ({}).", answer(Some(status))))
        }
        Some(404) => Failure::fatal(
            Kind::BadRequest,
            format!("The provider knows no such model or address ({said}). Check the model's id and baseUrl."),
        ),
        Some(status @ 300..=399) => Failure::fatal(
            Kind::BadRequest,
            format!("The server sends us elsewhere (status {status}). Put the final address into baseUrl."),
        ),
        Some(_) => Failure::fatal(Kind::BadRequest, format!("The provider refuses the request: {said}")),
        // An error in the stream that has no number: only its type tells whether it was our fault.
        None if says(&[
            "invalid_request",
            "invalid_argument",
            "bad_request",
            "badrequest",
            "not_found",
            "invalid_prompt",
            "failed_precondition",
        ]) =>
        {
            Failure::fatal(Kind::BadRequest, format!("The provider refuses the request: {said}"))
        }
        None if says(&["timeout", "timed out", "deadline"]) => {
            Failure::passing(Kind::Timeout, format!("The provider took too long ({said})."))
        }
        None => Failure::passing(Kind::Overloaded, format!("The provider failed in the middle of the reply ({said}).")),
    }
}

fn is_quota(text: &str, tag: &str) -> bool {
    const TAGS: [&str; 6] = [
        "insufficient_quota",
        "billing",
        "insufficient_balance",
        "exceeded_current_quota",
        "usage_limit_reached",
        "credit",
    ];
    const WORDS: [&str; 9] = [
        "insufficient balance",
        "insufficient_quota",
        "insufficient credits",
        "insufficient funds",
        "credit balance is too low",
        "billing details",
        "billing hard limit",
        "purchase more credits",
        "out of credits",
    ];
    // Gemini says "check your plan and billing details" for its limits per minute too.
    let passing = tag.contains("resource_exhausted") && !text.contains("perday") && !text.contains("limit: 0");
    !passing && (TAGS.iter().any(|word| tag.contains(word)) || WORDS.iter().any(|word| text.contains(word)))
}

/// Whether an error says that the request does not fit the model's window.
fn is_overflow(text: &str, tag: &str) -> bool {
    const SURE: [&str; 40] = [
        "context_length_exceeded",
        "context_window_exceeded",
        "model_context_window_exceeded",
        "maximum context length",
        "exceeds the context window",
        "exceed the context window",
        "exceeds the available context size",
        "exceed context limit",
        "exceeds the context limit",
        "exceeds context limit",
        "context window exceeds limit",
        "prompt is too long",
        "prompt too long",
        "input is too long",
        "input length and `max_tokens` exceed",
        "input token count",
        "request_too_large",
        "request entity too large",
        "reduce the length of the messages",
        "exceeded model token limit",
        "too large for model with",
        "maximum prompt length",
        "model_max_prompt_tokens_exceeded",
        "prompt token count of",
        "range of input length should be",
        "token limit exceeded",
        "too many tokens:",
        "too many input tokens",
        "tokens limit exceeded",
        "input tokens exceed",
        "number of input tokens exceed",
        "prompt exceeds",
        "prompt tokens exceed",
        "prompt has too many tokens",
        "request payload size exceeds",
        "longer than the maximum model length",
        "maximum input length",
        "max_input_tokens",
        "`inputs` must have less than",
        "conversation is too long",
    ];
    if SURE.iter().any(|words| text.contains(words) || tag.contains(words)) {
        return true;
    }
    // "Prompt has 5,958,968 tokens, but the configured context size is 256,000 tokens", and the like.
    let size = ["context size", "context length", "context window", "context limit", "n_ctx"];
    let over = ["token", "exceed", "too long", "too large", "larger than", "greater than"];
    if size.iter().any(|word| text.contains(word)) && over.iter().any(|word| text.contains(word)) {
        return true;
    }
    // "Input length 40000 exceeds the maximum length 32768", "`inputs` tokens + `max_new_tokens` must be <= 4096";
    // not "string too long", nor a `max_tokens` that is out of its range.
    let whole = ["input length", "prompt length", "total number of tokens", "`inputs` tokens"];
    let limit = ["exceed", "must be <=", "longer than", "greater than"];
    whole.iter().any(|word| text.contains(word)) && limit.iter().any(|word| text.contains(word))
}

/// What `Retry-After` asks for, in ms: seconds or a date. Nonsense and the past count as not said.
pub fn retry_after(value: &str, now_ms: u64) -> Option<u64> {
    let value = value.trim();
    let ms = match value.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds > 0.0 => (seconds.min(1e9) * 1e3) as u64,
        Ok(_) => return None,
        Err(_) => {
            let at = httpdate::parse_http_date(value).ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
            u64::try_from(at.as_millis()).ok()?.checked_sub(now_ms)?
        }
    };
    (ms > 0).then_some(ms)
}

/// The longest wait that a run sits out.
pub const LONGEST_WAIT_MS: u64 = 5 * 60_000;

/// A wait that nobody sits out ends the run with a word instead.
fn bound_wait(mut failure: Failure) -> Failure {
    if let Some(ms) = failure.retry_after_ms.filter(|ms| *ms > LONGEST_WAIT_MS) {
        failure.retryable = false;
        failure.retry_after_ms = None;
        failure.message = format!(
            "{} It asks to wait {} minutes: try later, or choose another model.",
            failure.message,
            ms.div_ceil(60_000)
        );
    }
    failure
}

/// `retryDelay: "12.5s"` in the details of a Google error.
fn google_retry_delay(body: &Value) -> Option<u64> {
    let body = body.as_array().and_then(|list| list.first()).unwrap_or(body);
    let details = body.pointer("/error/details")?.as_array()?;
    let delay = details.iter().find_map(|detail| detail.get("retryDelay"))?.as_str()?;
    retry_after(delay.strip_suffix('s')?, 0)
}

/// The words of another program, fit for a sentence of ours.
pub fn quote(text: &str) -> String {
    let clean: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(QUOTED + 1).collect();
    let words = clean.split_whitespace().collect::<Vec<_>>().join(" ");
    match words.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}…", words.get(..end).unwrap_or_default()),
        None if words.is_empty() => "no reason given".to_owned(),
        None => words,
    }
}

fn title(html: &str) -> Option<String> {
    let lower = html.to_ascii_lowercase();
    let start = lower.find("<title")?;
    let start = start + lower.get(start..)?.find('>')? + 1;
    let end = start + lower.get(start..)?.find("</title")?;
    let title = quote(html.get(start..end)?);
    (title.len() < 200).then_some(title)
}

#[cfg(test)]
mod tests {
    use super::*;
    use RunErrorKind as Kind;

    #[test]
    fn by_status_and_wording() {
        fn check(status: u16, body: &str, kind: Kind, retryable: bool) {
            let failure = of_status(status, body, None);
            assert_eq!((failure.kind, failure.retryable), (kind, retryable), "{status} {body}: {}", failure.message);
        }
        let overflow = [
            "prompt is too long: 256468 tokens > 256000",
            "Prompt has 5,958,968 tokens, but the configured context size is 256,000 tokens",
            "the request exceeds the available context size. try increasing the context size",
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens",
            "Your input exceeds the context window of this model.",
            "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
            "input length and `max_tokens` exceed context limit: 199990 + 8192 > 200000",
            "Invalid request: Your request exceeded model token limit: 262144",
            "prompt token count of 140000 exceeds the limit of 128000",
            "Range of input length should be [1, 98304]",
            "Input length 40000 exceeds the maximum length 32768",
            "The total number of tokens in the prompt exceeds the limit",
            "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 100 `max_new_tokens`",
            "too many tokens: 300000 > 200000",
            "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
            "tokens to keep from the initial prompt is greater than the context length",
            "the prompt (9000 tokens) is larger than n_ctx (8192)",
            "Prompt exceeds max length",
            "Input Tokens Exceeded: Number of input tokens exceeds maximum length",
            "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
            "`inputs` must have less than 1024 tokens. Given: 1500",
            "Request payload size exceeds the limit: 20971520 bytes.",
            "Prompt length (9000) exceeds maximum input length (8192)",
            "Tokens limit exceeded: 40000 of 32768",
        ];
        for words in overflow {
            check(400, &serde_json::json!({ "error": { "message": words } }).to_string(), Kind::ContextOverflow, false);
        }
        check(400, r#"{"error":{"code":"context_length_exceeded","message":"no"}}"#, Kind::ContextOverflow, false);
        check(400, r#"{"code":"context_length_exceeded"}"#, Kind::ContextOverflow, false);
        check(413, "", Kind::ContextOverflow, false);
        check(
            413,
            r#"{"error":{"message":"Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 7012","code":"rate_limit_exceeded"}}"#,
            Kind::ContextOverflow,
            false,
        );
        for words in [
            "Invalid max_tokens: must be between 1 and 4096",
            "max_tokens is too large: 100000. This model supports at most 4096 completion tokens",
            "URL is too long",
            "string too long. Expected a string with maximum length 64",
            "image exceeds 5 MB maximum",
            "Invalid 'input[3].call_id': string too long. Expected a string with maximum length 64, but got a string with length 87 instead.",
            "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens",
            "Invalid 'tools': array too long. Expected an array with maximum length 128",
        ] {
            check(400, &serde_json::json!({ "error": { "message": words } }).to_string(), Kind::BadRequest, false);
        }
        check(429, r#"{"error":{"message":"too many tokens per minute"}}"#, Kind::RateLimited, true);
        check(
            429,
            r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","code":"insufficient_quota"}}"#,
            Kind::Quota,
            false,
        );
        check(
            429,
            r#"[{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details.","status":"RESOURCE_EXHAUSTED"}}]"#,
            Kind::RateLimited,
            true,
        );
        check(402, r#"{"error":{"message":"Insufficient Balance"}}"#, Kind::Quota, false);
        check(
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"tools.0: bad schema"}}"#,
            Kind::BadRequest,
            false,
        );
        check(
            400,
            r#"{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT"}}"#,
            Kind::Auth,
            false,
        );
        check(401, "nope", Kind::Auth, false);
        check(403, r#"{"detail":"no"}"#, Kind::Auth, false);
        check(404, "<html><title>404 Not Found</title></html>", Kind::BadRequest, false);
        check(422, r#"{"detail":[{"loc":["body"],"msg":"field required"}]}"#, Kind::BadRequest, false);
        check(500, "", Kind::Overloaded, true);
        check(502, "<html><head><title>502 Bad Gateway</title></head></html>", Kind::Overloaded, true);
        check(503, "{}", Kind::Overloaded, true);
        check(504, "", Kind::Timeout, true);
        check(
            529,
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
            Kind::Overloaded,
            true,
        );
    }

    #[test]
    fn in_the_stream() {
        fn check(event: &str, expected: Option<(Kind, bool)>) {
            let failure = in_stream(&serde_json::from_str(event).unwrap());
            assert_eq!(failure.map(|f| (f.kind, f.retryable)), expected, "{event}");
        }
        check(
            r#"{"error":{"message":"Overloaded","type":"overloaded_error","code":null}}"#,
            Some((Kind::Overloaded, true)),
        );
        check(
            r#"{"error":{"message":"invalid_request: bad tool schema","type":"invalid_request_error","code":400}}"#,
            Some((Kind::BadRequest, false)),
        );
        check(r#"{"error":{"message":"internal","type":"server_error"}}"#, Some((Kind::Overloaded, true)));
        check(r#"{"error":{"message":"slow down","code":429}}"#, Some((Kind::RateLimited, true)));
        check(r#"{"error":"context_length_exceeded"}"#, Some((Kind::ContextOverflow, false)));
        check(r#"{"error":null,"choices":[]}"#, None);
        check(r#"{"error":{}}"#, None);
        check(r#"{"error":"bad tool schema","code":400}"#, Some((Kind::BadRequest, false)));
        // Without the key `error`, or around it.
        check(
            r#"{"object":"error","message":"bad tool schema","type":"BadRequestError","param":null,"code":400}"#,
            Some((Kind::BadRequest, false)),
        );
        check(r#"{"object":"error","message":"no","type":"BadRequestError"}"#, Some((Kind::BadRequest, false)));
        check(r#"{"type":"error","code":"server_error","message":"oops"}"#, Some((Kind::Overloaded, true)));
        check(r#"{"type":"error","error":null,"status":429,"message":"slow down"}"#, Some((Kind::RateLimited, true)));
        check(r#"{"detail":"Input is too long","status":400}"#, Some((Kind::ContextOverflow, false)));
        check(r#"[{"error":{"code":503,"message":"no","status":"UNAVAILABLE"}}]"#, Some((Kind::Overloaded, true)));
        check(r#"{"type":"delta","detail":"high"}"#, None);
        check(r#"{"object":"chat.completion.chunk","choices":[],"detail":null}"#, None);
    }

    #[test]
    fn waits() {
        let now = 1_700_000_000_000;
        fn date(ms: u64) -> String {
            httpdate::fmt_http_date(std::time::UNIX_EPOCH + std::time::Duration::from_millis(ms))
        }
        fn check(value: &str, expected: Option<u64>) {
            assert_eq!(retry_after(value, 1_700_000_000_000), expected, "{value}");
        }
        check("2", Some(2_000));
        check("0.5", Some(500));
        check(&date(now + 2_000), Some(2_000));
        check(&date(now - 60_000), None);
        check("3600", Some(3_600_000));
        check("1e300", Some(1_000_000_000_000));
        for nonsense in ["-1", "0", "abc", "", "NaN", "inf"] {
            check(nonsense, None);
        }
        let failure = of_status(429, "{}", Some(3_600_000));
        assert!(!failure.retryable && failure.retry_after_ms.is_none() && failure.message.contains("60 minutes"));
        assert_eq!(of_status(429, "{}", Some(2_000)).retry_after_ms, Some(2_000));
        assert_eq!(of_status(400, "{}", Some(2_000)).retry_after_ms, None);
        let google =
            r#"{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","details":[{"@type":"x"},{"retryDelay":"12.5s"}]}}"#;
        assert_eq!(of_status(429, google, None).retry_after_ms, Some(12_500));
    }

    #[test]
    fn words_of_others_are_short_and_clean() {
        assert_eq!(quote(" a\n\tb\u{1b}[0m "), "a b [0m");
        assert_eq!(quote("x".repeat(5_000).as_str()).chars().count(), QUOTED + 1);
        assert!(web_page("<!doctype html><title>Sign in</title>").message.contains("Sign in"));
    }
}
