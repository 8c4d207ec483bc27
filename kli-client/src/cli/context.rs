//! Which daemon, directory, session and entry a command is about.

use std::path::Path;

use anyhow::{Context as _, bail};
use kli_client::api::{self, SessionInfo, SessionState, TreeNode, TreeView};
use kli_client::protocol::record::{Body, Entry};
use kli_client::{CallError, Client, Connector, ErrorKind};

use super::UsageError;
use super::args::{Global, NewSession};

/// A connection, and the options that every command takes.
pub struct Context {
    pub client: Client,
    pub global: Global,
}

/// The daemon that the options name.
pub fn connector(global: &Global) -> anyhow::Result<Connector> {
    let connector = match &global.host {
        Some(host) => Connector::remote(host, &global.remote_kli)?,
        None => Connector::local(global.socket.clone())?,
    };
    Ok(connector.named("kli", env!("CARGO_PKG_VERSION")))
}

/// What a file says of MCP servers; the daemon looks whether it is right.
fn servers(file: &Path) -> anyhow::Result<serde_json::Value> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no JSON", file.display()))
}

impl Context {
    pub async fn connect(global: Global) -> anyhow::Result<Context> {
        let client = Client::connect(connector(&global)?).await?;
        Ok(Context { client, global })
    }

    /// The directory that is meant, whole.
    pub fn work_dir(&self) -> anyhow::Result<String> {
        match &self.global.work_dir {
            Some(dir) => self.path(dir),
            None => text_of(&std::env::current_dir().context("the current directory is gone")?),
        }
    }

    /// A path that the daemon is to look at, whole. One of another machine cannot be completed here.
    pub fn path(&self, path: &Path) -> anyhow::Result<String> {
        match &self.global.host {
            None => text_of(&std::path::absolute(path)?),
            Some(_) if path.is_absolute() => text_of(path),
            Some(host) => {
                let text = format!("with --host, {} is a path of {host}: give it from its root, /", path.display());
                Err(UsageError(text).into())
            }
        }
    }

    pub async fn create(&self, new: &NewSession) -> anyhow::Result<SessionInfo> {
        let (provider, model_id) = match &new.model {
            Some(model) => self.model(model).await.map(|m| (Some(m.provider), Some(m.model_id)))?,
            None => (None, None),
        };
        let params = api::CreateSessionParams {
            work_dir: self.work_dir()?,
            provider,
            model_id,
            mode: new.mode.map(Into::into),
            name: new.name.clone(),
            mcp_servers: new.mcp_config.as_deref().map(servers).transpose()?,
            ..Default::default()
        };
        Ok(self.client.call::<api::CreateSession>(params).await?)
    }

    /// Gives a session that is there the servers that the command line names.
    pub async fn give_servers(&self, session_id: &str, new: &NewSession) -> anyhow::Result<()> {
        let Some(file) = &new.mcp_config else { return Ok(()) };
        let params = api::OpenSessionParams {
            session_id: Some(session_id.to_owned()),
            mcp_servers: Some(servers(file)?),
            ..Default::default()
        };
        self.client.call::<api::OpenSession>(params).await?;
        Ok(())
    }

    /// A session in which nothing came to be (the model has no key, say, or nobody said anything) is not left among
    /// the others. What goes wrong here changes nothing about how the command ends.
    pub async fn take_back(&self, session_id: &str) {
        let Ok(state) = self.state(session_id).await else { return };
        let params = api::GetEntriesParams { session_id: session_id.to_owned(), ..Default::default() };
        let Ok(found) = self.client.call::<api::GetEntries>(params).await else { return };
        if state.info.name.is_none() && found.next_cursor.is_none() && found.entries.iter().all(is_setting) {
            let params = api::SessionParams { session_id: session_id.to_owned() };
            let _ = self.client.call::<api::DeleteSession>(params).await;
        }
    }

    /// `provider/model`, or a model's id that only one provider has.
    pub async fn model(&self, text: &str) -> anyhow::Result<api::ModelRef> {
        if let Some((provider, model_id)) = text.split_once('/') {
            return Ok(api::ModelRef { provider: provider.into(), model_id: model_id.into() });
        }
        let models = self.client.call::<api::ListModels>(api::NoParams {}).await?.models;
        let fit: Vec<_> = models.into_iter().filter(|m| m.model_id == text).collect();
        match fit.as_slice() {
            [one] => Ok(api::ModelRef { provider: one.provider.clone(), model_id: one.model_id.clone() }),
            [] => bail!("there is no model `{text}`; `kli models` lists them"),
            many => {
                let names: Vec<_> = many.iter().map(|m| format!("{}/{}", m.provider, m.model_id)).collect();
                bail!("several providers have `{text}`: {}", names.join(", "))
            }
        }
    }

    /// The whole id of the session that is meant: what the command names, else `--session`, else the one that
    /// `continueSession` gives for this directory.
    pub async fn session(&self, given: Option<&str>) -> anyhow::Result<String> {
        match given.or(self.global.session.as_deref()) {
            Some(text) => Ok(self.open(text).await?.session_id),
            None => match self.last().await? {
                Some(info) => Ok(info.session_id),
                None => bail!(
                    "there is no session in {}; `kli new` makes one, `kli ls --all` lists those of other directories",
                    self.work_dir()?
                ),
            },
        }
    }

    /// The session last used in this directory.
    pub async fn last(&self) -> anyhow::Result<Option<SessionInfo>> {
        let params = api::ContinueSessionParams { work_dir: self.work_dir()?, create: None };
        Ok(self.client.call::<api::ContinueSession>(params).await?)
    }

    /// A session by id, part of an id, name, or file.
    pub async fn open(&self, text: &str) -> anyhow::Result<SessionInfo> {
        if text.trim().is_empty() {
            return Err(UsageError("an empty text names no session".into()).into());
        }
        if !is_path(text) {
            return Ok(self.state(text).await?.info);
        }
        let params = api::OpenSessionParams { path: Some(self.path(Path::new(text))?), ..Default::default() };
        Ok(self.client.call::<api::OpenSession>(params).await?)
    }

    pub async fn state(&self, session_id: &str) -> Result<SessionState, CallError> {
        self.client.call::<api::GetSession>(api::SessionParams { session_id: session_id.into() }).await
    }

    /// The id of an entry: `leaf`, an id or the beginning of one, or a label.
    pub async fn entry(&self, session_id: &str, text: &str) -> anyhow::Result<String> {
        if text.trim().is_empty() {
            return Err(UsageError("an empty text names no entry".into()).into());
        }
        if text == "leaf" {
            let leaf = self.state(session_id).await?.leaf_id;
            return leaf.context("the leaf is before the first entry");
        }
        let params =
            api::GetEntriesParams { session_id: session_id.into(), ids: Some(vec![text.into()]), ..Default::default() };
        let missing = match self.client.call::<api::GetEntries>(params).await {
            Ok(found) => {
                let record = found.entries.first().and_then(|e| e.record().ok());
                return record.map(|r| r.id).with_context(|| format!("there is no entry `{text}`"));
            }
            Err(e) if e.api().and_then(|e| e.kind()) == Some(ErrorKind::EntryNotFound) => e,
            Err(e) => return Err(e.into()),
        };
        let tree = self.tree(session_id, TreeView::Labelled).await?;
        match tree.nodes.into_iter().rfind(|n| n.label.as_deref() == Some(text)) {
            Some(node) => Ok(node.id),
            None => Err(missing.into()),
        }
    }

    /// The whole tree, page by page.
    pub async fn tree(&self, session_id: &str, view: TreeView) -> Result<api::GetTreeResult, CallError> {
        let mut pages: Vec<Vec<TreeNode>> = Vec::new();
        let mut whole: Option<api::GetTreeResult> = None;
        let mut cursor = None;
        loop {
            let params = api::GetTreeParams {
                session_id: session_id.into(),
                view: Some(view),
                cursor: cursor.take(),
                ..Default::default()
            };
            let mut page = self.client.call::<api::GetTree>(params).await?;
            pages.push(std::mem::take(&mut page.nodes));
            cursor = page.next_cursor.take();
            // The first page says where the leaf is; later ones may already see it elsewhere.
            let whole = whole.get_or_insert(page);
            if cursor.is_none() {
                // Pages come from the newest back, each in file order.
                whole.nodes = pages.into_iter().rev().flatten().collect();
                return Ok(std::mem::take(whole));
            }
        }
    }
}

/// What is chosen for a session, and no part of a conversation.
pub fn is_setting(entry: &Entry) -> bool {
    let is = |body: &Body| {
        matches!(
            body,
            Body::ModelChange(_) | Body::ThinkingLevelChange(_) | Body::OptionChange(_) | Body::SessionInfo(_)
        )
    };
    entry.record().is_ok_and(|record| is(&record.body))
}

/// What a person would hardly mean as an id or a name.
fn is_path(text: &str) -> bool {
    text.contains('/') || text.ends_with(".jsonl")
}

/// A path as text, for the wire.
pub fn text_of(path: &Path) -> anyhow::Result<String> {
    match path.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => bail!("the path {} is not UTF-8, which the daemon cannot take", path.display()),
    }
}
