//! Where a provider's key comes from. A key is never printed: [`Key`] has no `Display`, its `Debug` says nothing.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use kli_protocol::api::RunErrorKind;
use tokio::sync::Mutex;

use crate::dialect::Failure;

/// How long a command that prints a key may take: it may ask a person for a passphrase.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_KEY: usize = 16 * 1024;

#[derive(Clone, PartialEq, Eq)]
pub struct Key(String);

impl Key {
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// `text` without the key, should a provider repeat it.
    pub fn redact(&self, text: &str) -> String {
        if self.0.len() < 4 { text.to_owned() } else { text.replace(&self.0, "[key]") }
    }

    fn read(text: &str, from: &str) -> Result<Key, Failure> {
        let key = text.lines().next().unwrap_or_default().trim();
        if key.is_empty() {
            return Err(no_key(format!("{from} is empty: there is no API key.")));
        }
        if key.len() > MAX_KEY || !key.bytes().all(|b| (0x21..0x7f).contains(&b)) {
            return Err(no_key(format!("{from} holds no API key: it has characters that no key has.")));
        }
        Ok(Key(key.to_owned()))
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

#[derive(Clone, Debug)]
pub enum KeySource {
    /// The server wants none.
    None,
    /// Read from the daemon's environment when the table of models was built.
    Env {
        name: String,
        key: Option<Key>,
    },
    File(PathBuf),
    Command(Arc<KeyCommand>),
}

/// A command that prints a key, and what it printed.
#[derive(Debug)]
pub struct KeyCommand {
    argv: Vec<String>,
    /// A lock and no message: sessions that ask at the same time wait for one run of the command.
    known: Mutex<Option<Key>>,
}

impl KeySource {
    pub fn env(name: &str, value: Option<String>) -> KeySource {
        let key = value.and_then(|value| Key::read(&value, name).ok());
        KeySource::Env { name: name.to_owned(), key }
    }

    pub fn command(argv: Vec<String>) -> KeySource {
        KeySource::Command(Arc::new(KeyCommand { argv, known: Mutex::new(None) }))
    }

    /// Why there is no key, as far as can be told without running a command.
    pub fn missing(&self) -> Option<String> {
        match self {
            KeySource::None | KeySource::Env { key: Some(_), .. } => None,
            KeySource::Env { name, key: None } => Some(format!(
                "Set {name} in the daemon's environment (and restart it), or apiKeyFile or apiKeyCommand in config.toml."
            )),
            KeySource::File(path) => read_file(path).err().map(|failure| failure.message),
            KeySource::Command(command) => command.argv.is_empty().then(|| "apiKeyCommand is empty.".to_owned()),
        }
    }

    pub fn env_name(&self) -> Option<&str> {
        match self {
            KeySource::Env { name, .. } => Some(name),
            _ => None,
        }
    }

    pub async fn resolve(&self) -> Result<Option<Key>, Failure> {
        match self {
            KeySource::None => Ok(None),
            KeySource::Env { key: Some(key), .. } => Ok(Some(key.clone())),
            KeySource::Env { key: None, .. } => Err(no_key(self.missing().unwrap_or_default())),
            KeySource::File(path) => read_file(path).map(Some),
            KeySource::Command(command) => command.key().await.map(Some),
        }
    }

    /// The provider refused the key: the next request asks the command again.
    pub fn forget(&self) {
        if let KeySource::Command(command) = self {
            // Held: the command is running just now, its key is new.
            if let Ok(mut known) = command.known.try_lock() {
                *known = None;
            }
        }
    }
}

impl KeyCommand {
    async fn key(&self) -> Result<Key, Failure> {
        let mut known = self.known.lock().await;
        if let Some(key) = known.as_ref() {
            return Ok(key.clone());
        }
        let key = self.run().await?;
        *known = Some(key.clone());
        Ok(key)
    }

    async fn run(&self) -> Result<Key, Failure> {
        let Some((program, arguments)) = self.argv.split_first() else {
            return Err(no_key("apiKeyCommand is empty.".into()));
        };
        // Its output may hold the key or hints at it, so nothing of it is repeated, not even on failure.
        let output = tokio::process::Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = match tokio::time::timeout(COMMAND_TIMEOUT, output).await {
            Ok(Ok(output)) => output,
            Ok(Err(e)) => return Err(no_key(format!("apiKeyCommand {program} could not be run: {e}."))),
            Err(_) => {
                return Err(no_key(format!(
                    "apiKeyCommand {program} gave no key within {} s.",
                    COMMAND_TIMEOUT.as_secs()
                )));
            }
        };
        if !output.status.success() {
            return Err(no_key(format!("apiKeyCommand {program} failed ({}).", output.status)));
        }
        Key::read(&String::from_utf8_lossy(&output.stdout), &format!("The output of apiKeyCommand {program}"))
    }
}

fn read_file(path: &Path) -> Result<Key, Failure> {
    use std::io::Read;
    use std::os::unix::fs::MetadataExt;
    let shown = path.display();
    let cannot = |e: std::io::Error| no_key(format!("apiKeyFile {shown} cannot be read: {e}."));
    let file = std::fs::File::open(path).map_err(cannot)?;
    let mode = file.metadata().map_err(cannot)?.mode();
    if mode & 0o077 != 0 {
        return Err(no_key(format!("apiKeyFile {shown} can be read by others: run `chmod 600 {shown}`.")));
    }
    let mut text = String::new();
    let bound = u64::try_from(MAX_KEY).unwrap_or(u64::MAX);
    file.take(bound).read_to_string(&mut text).map_err(cannot)?;
    Key::read(&text, &format!("apiKeyFile {shown}"))
}

fn no_key(message: String) -> Failure {
    Failure::fatal(RunErrorKind::NoApiKey, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[tokio::test]
    async fn from_a_file_that_only_its_owner_reads() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, "sk-abc\n").unwrap();
        let source = KeySource::File(path.clone());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(source.missing().unwrap().contains("chmod 600"));
        assert_eq!(source.resolve().await.unwrap_err().kind, RunErrorKind::NoApiKey);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(source.missing(), None);
        assert_eq!(source.resolve().await.unwrap().unwrap().expose(), "sk-abc");
        std::fs::write(&path, "\n").unwrap();
        assert!(source.missing().unwrap().contains("empty"));
    }

    #[tokio::test]
    async fn from_a_command_that_runs_once() {
        let dir = tempfile::tempdir().unwrap();
        let count = dir.path().join("count");
        let script = format!("echo x >> {}; echo key-1; echo noise", count.display());
        let source = KeySource::command(vec!["sh".into(), "-c".into(), script]);
        for _ in 0..3 {
            assert_eq!(source.resolve().await.unwrap().unwrap().expose(), "key-1");
        }
        assert_eq!(std::fs::read_to_string(&count).unwrap(), "x\n");
        source.forget();
        source.resolve().await.unwrap();
        assert_eq!(std::fs::read_to_string(&count).unwrap(), "x\nx\n");
        let failing = KeySource::command(vec!["sh".into(), "-c".into(), "echo secret; exit 3".into()]);
        let failure = failing.resolve().await.unwrap_err();
        assert!(failure.message.contains("failed") && !failure.message.contains("secret"));
    }

    #[tokio::test]
    async fn from_the_environment() {
        assert!(KeySource::env("X_KEY", None).missing().unwrap().contains("X_KEY"));
        assert!(KeySource::env("X_KEY", Some("  ".into())).missing().is_some());
        assert_eq!(KeySource::env("X_KEY", Some("k".into())).missing(), None);
        let shown = format!("{:?}", KeySource::env("X_KEY", Some("sk-secret".into())));
        assert!(!shown.contains("secret"), "{shown}");
    }
}
