//! What a person writes down about a provider, as the configuration and the catalogue spell it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use kli_protocol::api::{ModelCost, ModelRef};
use serde::Deserialize;

/// All that the table of models is built from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelsSettings {
    /// In the order of the file: the first usable one is the default.
    pub providers: Vec<(String, ProviderSettings)>,
    pub default_model: Option<ModelRef>,
    pub timeouts: Timeouts,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ProviderSettings {
    /// `openai-chat`, `openai-responses`, `anthropic`, `google`
    pub api: Option<String>,
    pub base_url: Option<String>,
    pub api_key_env: Option<String>,
    /// Must not be readable by others.
    pub api_key_file: Option<PathBuf>,
    /// Its first line of output is the key.
    pub api_key_command: Option<Vec<String>>,
    /// Sent with each request.
    pub headers: BTreeMap<String, String>,
    pub idle_timeout_ms: Option<u64>,
    pub connect_timeout_ms: Option<u64>,
    pub models: Vec<ModelSettings>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ModelSettings {
    pub id: String,
    pub name: Option<String>,
    pub context_window: Option<u64>,
    pub max_output: Option<u64>,
    pub reasoning: Option<bool>,
    /// The values of `reasoning-effort` that the model knows.
    pub reasoning_levels: Option<Vec<String>>,
    pub input: Option<Vec<String>>,
    pub cost: Option<ModelCost>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until the connection stands, TLS included.
    pub connect: Duration,
    /// Between two events that bring the reply forward.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        // A local model may read a long prompt for minutes before its first word.
        Timeouts { connect: Duration::from_secs(15), idle: Duration::from_secs(300) }
    }
}
