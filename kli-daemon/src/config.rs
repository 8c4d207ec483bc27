//! What a person has set: `config.toml`, then the environment, then flags.
//!
//! One vocabulary, spelled as on the wire. A key that is not known, or whose value has the wrong type, is an
//! error that names it; a reload that fails leaves the old configuration standing. The project's own
//! `.kli/config.toml` may set a few harmless keys, see [`Config::project`].

mod schema;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kli_protocol::api::{Mode, ModelRef};
use serde::Deserialize;
use toml::{Table, Value};

use crate::provider::settings::{ModelsSettings, ProviderSettings, Timeouts};
use crate::store::Durability;
use crate::tool::sandbox::Sandbox;
use schema::{PROJECT, ROOT};

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{path}: cannot be read: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}: no valid TOML: {reason}")]
    Syntax { path: PathBuf, reason: String },
    #[error("{origin}: there is no key {key}.{hint}")]
    UnknownKey { origin: String, key: String, hint: String },
    #[error("{origin}: {key} should be {expected}, not {found}.")]
    WrongType { origin: String, key: String, expected: String, found: String },
    #[error("{origin}: {key}: {reason}")]
    Invalid { origin: String, key: String, reason: String },
    #[error(
        "{origin}: {key} may not be set by a project, since it widens what may be done: put it into your own config.toml."
    )]
    NotForProjects { origin: String, key: String },
}

impl ConfigError {
    /// Names what set the key, where that was not the file.
    fn set_by(mut self, pinned: &BTreeMap<String, String>) -> ConfigError {
        if let ConfigError::Invalid { origin, key, .. } = &mut self
            && let Some(setter) = pinned.get(key)
        {
            origin.clone_from(setter);
        }
        self
    }
}

/// The origin of what a flag set.
const COMMAND_LINE: &str = "command line";

/// Where a configuration comes from.
pub struct Sources<'a> {
    /// `--config`; it must exist. None: `$KLI_CONFIG` (which must exist), else the user's own, which may not.
    pub file: Option<PathBuf>,
    /// The daemon's environment.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// Keys as in the file (`sessionDir`, `retry.maxAttempts`) and their values.
    pub flags: Vec<(String, String)>,
}

/// What is set, and the default for what is not.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The file that was read.
    pub path: Option<PathBuf>,
    /// Absolute; none: sessions live in memory only.
    pub session_dir: Option<PathBuf>,
    pub default_model: Option<ModelRef>,
    pub default_mode: Mode,
    pub durability: Durability,
    /// What commands may touch.
    pub sandbox: Sandbox,
    /// How long the daemon stays when nobody is connected, nothing runs and nothing lives only in memory.
    pub idle_exit: Option<Duration>,
    /// How long a session stays loaded that nobody uses.
    pub unload_after: Duration,
    pub limits: Limits,
    pub compaction: Compaction,
    pub retry: Retry,
    pub approvals: Approvals,
    pub models: ModelsSettings,
    /// All that was set, for [`Config::diff`].
    set: Table,
    /// Keys that the environment or a flag set, and which: a project does not change them.
    pinned: BTreeMap<String, String>,
}

/// The bounds that a person may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub max_memory_bytes: u64,
    pub max_message_bytes: u64,
    pub max_subscriber_bytes: u64,
    pub max_connections: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_memory_bytes: 512 << 20,
            max_message_bytes: 16 << 20,
            max_subscriber_bytes: 8 << 20,
            max_connections: 1_024,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compaction {
    pub enabled: bool,
    /// Room kept free for the reply.
    pub reserve_tokens: u64,
    /// What stays word for word.
    pub keep_recent_tokens: u64,
}

impl Default for Compaction {
    fn default() -> Compaction {
        Compaction { enabled: true, reserve_tokens: 16_384, keep_recent_tokens: 20_000 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Retry {
    /// How often a request is sent at most; 1: no retry.
    pub max_attempts: u32,
    pub base_delay_ms: u64,
}

impl Default for Retry {
    fn default() -> Retry {
        Retry { max_attempts: 5, base_delay_ms: 1_000 }
    }
}

/// Rules such as `bash(git status)`: what needs no person, and what is never done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Approvals {
    pub allow: Vec<String>,
    pub deny: Vec<String>,
}

/// What the project's own `.kli/config.toml` set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Project {
    pub default_model: Option<ModelRef>,
    /// Only `ask` and `plan`.
    pub default_mode: Option<Mode>,
    pub compaction: CompactionChange,
    /// Rules that forbid more.
    pub deny: Vec<String>,
}

/// Of `[compaction]`, what was set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CompactionChange {
    pub enabled: Option<bool>,
    pub reserve_tokens: Option<u64>,
    pub keep_recent_tokens: Option<u64>,
}

impl CompactionChange {
    pub fn over(self, base: Compaction) -> Compaction {
        Compaction {
            enabled: self.enabled.unwrap_or(base.enabled),
            reserve_tokens: self.reserve_tokens.unwrap_or(base.reserve_tokens),
            keep_recent_tokens: self.keep_recent_tokens.unwrap_or(base.keep_recent_tokens),
        }
    }
}

const UNLOAD_AFTER: Duration = Duration::from_secs(300);

/// The shape of the file, once its keys and types are known to be right.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct File {
    session_dir: Option<String>,
    default_model: Option<String>,
    default_mode: Option<Mode>,
    durability: Option<String>,
    sandbox: Sandbox,
    idle_exit_ms: Option<u64>,
    unload_after_ms: Option<u64>,
    max_memory_bytes: Option<u64>,
    max_message_bytes: Option<u64>,
    max_subscriber_bytes: Option<u64>,
    max_connections: Option<u64>,
    connect_timeout_ms: Option<u64>,
    idle_timeout_ms: Option<u64>,
    compaction: CompactionChange,
    retry: Retry,
    approvals: Approvals,
}

/// The user's own `config.toml`.
pub fn user_path() -> Option<PathBuf> {
    Some(directories::ProjectDirs::from("", "", "kli")?.config_dir().join("config.toml"))
}

impl Config {
    pub fn load(sources: &Sources<'_>) -> Result<Config, ConfigError> {
        let named = sources.file.clone().or_else(|| (sources.env)("KLI_CONFIG").map(|path| expand(&path, sources.env)));
        let (path, must_exist) = match named {
            Some(path) => (Some(path), true),
            None => (user_path(), false),
        };
        let text = match &path {
            None => None,
            Some(path) => match std::fs::read_to_string(path) {
                Ok(text) => Some(text),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound && !must_exist => None,
                Err(source) => return Err(ConfigError::Read { path: path.clone(), source }),
            },
        };
        let mut set = Table::new();
        if let (Some(path), Some(text)) = (&path, &text) {
            set = parse(path, text)?;
            schema::check(&set, ROOT, &path.display().to_string())?;
        }
        let mut pinned = overlay_env(&mut set, sources.env)?;
        for (key, text) in &sources.flags {
            let shape = schema::of_key(key).ok_or_else(|| schema::unknown(COMMAND_LINE, key, ROOT))?;
            let value = schema::read(shape, text, COMMAND_LINE, key)?;
            put(&mut set, key, value);
            pinned.insert(key.clone(), COMMAND_LINE.to_owned());
        }
        let origin = path.as_ref().map_or_else(|| "configuration".to_owned(), |path| path.display().to_string());
        let mut config = Config::from_table(set, &origin, sources.env).map_err(|error| error.set_by(&pinned))?;
        config.path = path.filter(|_| text.is_some());
        config.pinned = pinned;
        Ok(config)
    }

    /// What the project in `dir` sets for itself; call it for a trusted directory only. Absent: nothing.
    pub fn project(&self, dir: &Path) -> Result<Option<Project>, ConfigError> {
        let path = dir.join(".kli").join("config.toml");
        let text = match read_small(&path) {
            Ok(text) => text,
            Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(source) => return Err(ConfigError::Read { path, source }),
        };
        let origin = path.display().to_string();
        let mut set = parse(&path, &text)?;
        schema::check(&set, ROOT, &origin)?;
        for key in schema::leaves(&set).into_keys() {
            if !PROJECT.contains(&key.as_str()) {
                return Err(ConfigError::NotForProjects { origin, key });
            }
        }
        for key in self.pinned.keys().filter(|key| *key != "approvals.deny") {
            remove(&mut set, key);
        }
        let file: File = file_of(&set, &origin)?;
        if file.default_mode == Some(Mode::Auto) {
            return Err(ConfigError::NotForProjects { origin, key: "defaultMode = \"auto\"".into() });
        }
        Ok(Some(Project {
            default_model: file.default_model.as_deref().map(|text| model_ref(text, &origin)).transpose()?,
            default_mode: file.default_mode,
            compaction: file.compaction,
            deny: file.approvals.deny,
        }))
    }

    /// What set a key, for a person: the variable, the command line, or the file.
    pub fn origin(&self, key: &str) -> String {
        let path = || self.path.as_ref().map(|path| path.display().to_string());
        self.pinned.get(key).cloned().or_else(path).unwrap_or_else(|| "configuration".into())
    }

    /// The keys whose value is another in `other`.
    pub fn diff(&self, other: &Config) -> Vec<String> {
        let (old, new) = (schema::leaves(&self.set), schema::leaves(&other.set));
        let mut keys: Vec<String> = old
            .iter()
            .filter(|(key, value)| new.get(*key) != Some(value))
            .map(|(key, _)| key.clone())
            .chain(new.keys().filter(|key| !old.contains_key(*key)).cloned())
            .collect();
        keys.sort();
        keys
    }

    fn from_table(set: Table, origin: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Config, ConfigError> {
        let file: File = file_of(&set, origin)?;
        let invalid =
            |key: &str, reason: String| ConfigError::Invalid { origin: origin.to_owned(), key: key.to_owned(), reason };
        let session_dir = file.session_dir.as_deref().map(|text| expand(text, env));
        if let Some(dir) = session_dir.as_ref().filter(|dir| !dir.is_absolute()) {
            let reason = format!(
                "{} is relative, and the daemon's directory is not yours: give an absolute path, or one that begins with ~.",
                dir.display()
            );
            return Err(invalid("sessionDir", reason));
        }
        let durability = match file.durability.as_deref() {
            None => Durability::default(),
            Some("os") => Durability::Os,
            Some("entry") => Durability::Entry,
            Some(_) => Durability::Turn,
        };
        let defaults = Limits::default();
        let limits = Limits {
            max_memory_bytes: file.max_memory_bytes.unwrap_or(defaults.max_memory_bytes),
            max_message_bytes: file.max_message_bytes.unwrap_or(defaults.max_message_bytes).max(64 << 10),
            max_subscriber_bytes: file.max_subscriber_bytes.unwrap_or(defaults.max_subscriber_bytes).max(64 << 10),
            max_connections: file.max_connections.unwrap_or(defaults.max_connections).max(1),
        };
        let timeouts = Timeouts::default();
        let default_model = file.default_model.as_deref().map(|text| model_ref(text, origin)).transpose()?;
        Ok(Config {
            path: None,
            session_dir,
            default_mode: file.default_mode.unwrap_or_default(),
            durability,
            sandbox: file.sandbox,
            idle_exit: file.idle_exit_ms.map(Duration::from_millis),
            unload_after: file.unload_after_ms.map_or(UNLOAD_AFTER, |ms| Duration::from_millis(ms.max(1))),
            limits,
            compaction: file.compaction.over(Compaction::default()),
            retry: Retry { max_attempts: file.retry.max_attempts.max(1), ..file.retry },
            approvals: file.approvals,
            models: ModelsSettings {
                providers: providers_of(&set, origin, env)?,
                default_model: default_model.clone(),
                timeouts: Timeouts {
                    connect: file.connect_timeout_ms.map_or(timeouts.connect, Duration::from_millis),
                    idle: file.idle_timeout_ms.map_or(timeouts.idle, Duration::from_millis),
                },
            },
            default_model,
            set,
            pinned: BTreeMap::new(),
        })
    }
}

impl Default for Config {
    /// Nothing is set.
    fn default() -> Config {
        Config {
            path: None,
            session_dir: None,
            default_model: None,
            default_mode: Mode::default(),
            durability: Durability::default(),
            sandbox: Sandbox::default(),
            idle_exit: None,
            unload_after: UNLOAD_AFTER,
            limits: Limits::default(),
            compaction: Compaction::default(),
            retry: Retry::default(),
            approvals: Approvals::default(),
            models: ModelsSettings::default(),
            set: Table::new(),
            pinned: BTreeMap::new(),
        }
    }
}

fn parse(path: &Path, text: &str) -> Result<Table, ConfigError> {
    text.parse::<Table>()
        .map_err(|e| ConfigError::Syntax { path: path.to_owned(), reason: e.to_string().trim_end().to_owned() })
}

fn file_of(set: &Table, origin: &str) -> Result<File, ConfigError> {
    let mut set = set.clone();
    set.remove("providers");
    // Keys and types were checked before; what is left are numbers out of range.
    File::deserialize(Value::Table(set)).map_err(|e| ConfigError::Invalid {
        origin: origin.to_owned(),
        key: "a value".into(),
        reason: e.to_string().trim_end().to_owned(),
    })
}

fn providers_of(
    set: &Table,
    origin: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<(String, ProviderSettings)>, ConfigError> {
    let mut providers = Vec::new();
    for (name, value) in set.get("providers").and_then(Value::as_table).into_iter().flatten() {
        let key = format!("providers.{name}");
        let invalid =
            |key: &str, reason: String| ConfigError::Invalid { origin: origin.to_owned(), key: key.to_owned(), reason };
        let mut settings = ProviderSettings::deserialize(value.clone()).map_err(|e| invalid(&key, e.to_string()))?;
        if name.is_empty() || name.contains('/') {
            return Err(invalid(&key, "a provider's name may not be empty and holds no slash.".into()));
        }
        if let Some(url) =
            settings.base_url.as_ref().filter(|url| !url.starts_with("http://") && !url.starts_with("https://"))
        {
            return Err(invalid(&format!("{key}.baseUrl"), format!("{url} does not begin with http:// or https://.")));
        }
        if settings.models.iter().any(|model| model.id.trim().is_empty()) {
            return Err(invalid(&format!("{key}.models"), "each model needs an id.".into()));
        }
        let sources =
            [settings.api_key_env.is_some(), settings.api_key_file.is_some(), settings.api_key_command.is_some()];
        if sources.into_iter().filter(|set| *set).count() > 1 {
            return Err(invalid(&key, "give one of apiKeyEnv, apiKeyFile and apiKeyCommand.".into()));
        }
        if let Some(file) = &settings.api_key_file {
            let path = expand(&file.to_string_lossy(), env);
            if !path.is_absolute() {
                return Err(invalid(&format!("{key}.apiKeyFile"), format!("{} is relative.", path.display())));
            }
            settings.api_key_file = Some(path);
        }
        providers.push((name.clone(), settings));
    }
    Ok(providers)
}

/// `provider/model`: the first slash parts them, since ids of models have slashes too.
fn model_ref(text: &str, origin: &str) -> Result<ModelRef, ConfigError> {
    match text.split_once('/') {
        Some((provider, model)) if !provider.is_empty() && !model.is_empty() => {
            Ok(ModelRef { provider: provider.to_owned(), model_id: model.to_owned() })
        }
        _ => Err(ConfigError::Invalid {
            origin: origin.to_owned(),
            key: "defaultModel".into(),
            reason: format!("\"{text}\" should be provider/model, such as local/qwen3."),
        }),
    }
}

/// `KLI_` and the key in upper snake case, for all keys that hold one value. Gives the keys that were set so, each with its variable.
fn overlay_env(set: &mut Table, env: &dyn Fn(&str) -> Option<String>) -> Result<BTreeMap<String, String>, ConfigError> {
    let mut keys = BTreeMap::new();
    for (key, shape) in schema::scalars() {
        let name = schema::env_name(&key);
        // Empty is as good as not set: shells have no other way to take one back.
        let Some(text) = env(&name).filter(|text| !text.is_empty()) else { continue };
        let value = schema::read(shape, &text, &name, &key)?;
        put(set, &key, value);
        keys.insert(key, name);
    }
    Ok(keys)
}

fn put(set: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        None => {
            set.insert(key.to_owned(), value);
        }
        Some((head, rest)) => {
            let inner = set.entry(head.to_owned()).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                put(inner, rest, value);
            }
        }
    }
}

fn remove(set: &mut Table, key: &str) {
    match key.split_once('.') {
        None => {
            set.remove(key);
        }
        Some((head, rest)) => {
            if let Some(Value::Table(inner)) = set.get_mut(head) {
                remove(inner, rest);
            }
        }
    }
}

/// A project's file is a stranger's: no pipe to wait at, nothing that fills the memory.
fn read_small(path: &Path) -> std::io::Result<String> {
    const MAX: u64 = 256 << 10;
    let meta = std::fs::metadata(path)?;
    if !meta.is_file() || meta.len() > MAX {
        return Err(std::io::Error::other(format!("no plain file of at most {MAX} bytes")));
    }
    std::fs::read_to_string(path)
}

/// A path with its `~`.
fn expand(text: &str, env: &dyn Fn(&str) -> Option<String>) -> PathBuf {
    let home = || {
        env("HOME")
            .filter(|home| !home.is_empty())
            .map(PathBuf::from)
            .or_else(|| directories::BaseDirs::new().map(|dirs| dirs.home_dir().to_owned()))
    };
    match text.strip_prefix('~') {
        Some("") => home().unwrap_or_else(|| text.into()),
        Some(rest) if rest.starts_with('/') => match home() {
            Some(home) => home.join(rest.trim_start_matches('/')),
            None => text.into(),
        },
        _ => text.into(),
    }
}
