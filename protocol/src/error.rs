//! The application errors: one code and one stable `data.kind` for each, and a sentence for a person.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// An error and its causes as one line. A cause that the text before it ends with is not told twice.
pub fn in_full(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let told = error.to_string();
        if !text.ends_with(&told) {
            text.push_str(": ");
            text.push_str(&told);
        }
        cause = error.source();
    }
    text
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// What went wrong, for a program. The codes go down from -32020 in this order; new kinds come last.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ErrorKind { $($(#[$doc])* $variant,)* }

        impl ErrorKind {
            pub const ALL: &[ErrorKind] = &[$(ErrorKind::$variant,)*];

            pub fn name(self) -> &'static str {
                match self { $(ErrorKind::$variant => $name,)* }
            }
        }
    };
}

kinds! {
    SessionNotFound = "sessionNotFound",
    EntryNotFound = "entryNotFound",
    /// `candidates`: the ids that fit.
    Ambiguous = "ambiguous",
    SessionExists = "sessionExists",
    /// `status`, `runId?`
    SessionBusy = "sessionBusy",
    SessionReadOnly = "sessionReadOnly",
    /// `path`, `offset?`
    SessionCorrupt = "sessionCorrupt",
    /// `leafId`: where the leaf really is.
    LeafMoved = "leafMoved",
    WorkDirNotFound = "workDirNotFound",
    NotTrusted = "notTrusted",
    ModelNotFound = "modelNotFound",
    /// `provider`, `apiKeyEnv?`
    NoApiKey = "noApiKey",
    NothingToCompact = "nothingToCompact",
    CompactionFailed = "compactionFailed",
    StoreFailed = "storeFailed",
    InvalidEntry = "invalidEntry",
    /// `decision?`: what was decided before.
    ApprovalNotFound = "approvalNotFound",
    CallNotFound = "callNotFound",
    FileExists = "fileExists",
    /// `limit`, `max`
    LimitExceeded = "limitExceeded",
    NeedsConnection = "needsConnection",
    Aborted = "aborted",
    /// `running`, `memoryOnly`: session ids.
    DaemonBusy = "daemonBusy",
    ShuttingDown = "shuttingDown",
}

impl ErrorKind {
    pub fn code(self) -> i32 {
        -32020 - self as i32
    }

    pub fn of_code(code: i32) -> Option<ErrorKind> {
        let index = usize::try_from((-32020i32).checked_sub(code)?).ok()?;
        ErrorKind::ALL.get(index).copied()
    }
}

/// JSON-RPC's own codes.
pub mod code {
    pub const PARSE_ERROR: i32 = -32700;
    pub const INVALID_REQUEST: i32 = -32600;
    pub const METHOD_NOT_FOUND: i32 = -32601;
    pub const INVALID_PARAMS: i32 = -32602;
    pub const INTERNAL_ERROR: i32 = -32603;
}

/// An error reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub code: i32,
    /// A sentence that says what is wrong and what to do.
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl ApiError {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> ApiError {
        ApiError { code: kind.code(), message: message.into(), data: Some(json!({ "kind": kind.name() })) }
    }

    /// Adds a field to `data`.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> ApiError {
        if !matches!(self.data, Some(Value::Object(_))) {
            self.data = Some(Value::Object(Map::new()));
        }
        if let Some(Value::Object(data)) = &mut self.data {
            data.insert(key.to_owned(), value.into());
        }
        self
    }

    pub fn invalid_params(message: impl Into<String>) -> ApiError {
        ApiError { code: code::INVALID_PARAMS, message: message.into(), data: None }
    }

    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError { code: code::INTERNAL_ERROR, message: message.into(), data: None }
    }

    pub fn limit(limit: &str, max: u64, message: impl Into<String>) -> ApiError {
        ApiError::new(ErrorKind::LimitExceeded, message).with("limit", limit).with("max", max)
    }

    pub fn kind(&self) -> Option<ErrorKind> {
        ErrorKind::of_code(self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_follow_the_order_of_the_contract() {
        assert_eq!(ErrorKind::SessionNotFound.code(), -32020);
        assert_eq!(ErrorKind::EntryNotFound.code(), -32021);
        assert_eq!(ErrorKind::SessionBusy.code(), -32024);
        assert_eq!(ErrorKind::ShuttingDown.code(), -32043);
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::of_code(kind.code()), Some(*kind));
        }
        assert_eq!(ErrorKind::of_code(-32044), None);
        assert_eq!(ErrorKind::of_code(-32019), None);
    }

    #[test]
    fn a_cause_is_told_once() {
        #[derive(Debug)]
        struct Told(&'static str, Option<Box<Told>>);
        impl std::fmt::Display for Told {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.0)
            }
        }
        impl std::error::Error for Told {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                self.1.as_deref().map(|cause| cause as _)
            }
        }
        let check = |error: Told, text| assert_eq!(in_full(&error), text);
        let cause = || Some(Box::new(Told("the disk is full", None)));
        check(Told("cannot write", None), "cannot write");
        check(Told("cannot write", cause()), "cannot write: the disk is full");
        check(Told("cannot write: the disk is full", cause()), "cannot write: the disk is full");
    }
}
