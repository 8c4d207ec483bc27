//! MCP servers of a session: programs and addresses that offer tools to it (Model Context Protocol).
//!
//! Each server has a task that starts it, asks for its tools and keeps it; a session never waits for one but a
//! moment before its first request. Servers end with their session, and a program among them with all its children.
//!
//! Inside: [`settings`] reads what a client gives, [`server`] is one server's life, [`tool`] makes its tools those of
//! the agent, [`names`] gives them names that every provider takes.

mod names;
mod server;
mod settings;
mod tool;
mod watched;

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use kli_protocol::api::Warning;
use tokio::time::Instant;

use crate::provider::http::Clients;
use crate::tool::Tool;
use crate::tool::jobs::Jobs;

use server::Server;
pub use settings::Settings;

/// How long the first request of a session waits for servers that are just starting: most take less.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where servers run.
pub struct Scene {
    /// The session's; a program starts there unless it says where.
    pub work_dir: PathBuf,
    /// Of the session, over the daemon's own.
    pub env: Arc<BTreeMap<String, String>>,
    /// The session's: what a program leaves ends with them.
    pub jobs: Arc<Jobs>,
    pub clients: Arc<Clients>,
    /// Called when a server has come or gone; a warning is news. Must not block.
    pub changed: Box<dyn Fn(Option<Warning>) + Send + Sync>,
}

/// The servers of one session. Dropped, they end soon; [`Servers::shutdown`] waits for that.
#[derive(Default)]
pub struct Servers {
    settings: Settings,
    servers: Vec<Server>,
    since: Option<Instant>,
}

impl Servers {
    pub fn start(settings: Settings, scene: Scene) -> Servers {
        let scene = Arc::new(scene);
        let start = |(name, address): &(String, settings::Address)| {
            Server::start(name.clone(), address.resolved(&scene.env), scene.clone())
        };
        let servers = settings.servers().iter().map(start).collect();
        Servers { settings, servers, since: Some(Instant::now()) }
    }

    /// What they were made from.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Their tools for the next request, in an order that does not depend on which server was quicker.
    pub fn tools(&self) -> Vec<Arc<dyn Tool>> {
        let mut names = HashSet::new();
        let tools = self.servers.iter().flat_map(Server::tools);
        tools.filter(|tool| names.insert(tool.spec().name.clone())).collect()
    }

    /// What is wrong with them.
    pub fn warnings(&self) -> Vec<Warning> {
        self.servers.iter().filter_map(Server::warning).collect()
    }

    /// Until every server has come or failed, or the patience with them is over.
    pub fn settled(&self) -> impl Future<Output = ()> + Send + use<> {
        let all = join_all(self.servers.iter().map(Server::settled));
        let until = self.since.map_or_else(Instant::now, |since| since + PATIENCE);
        async move {
            let _ = tokio::time::timeout_at(until, all).await;
        }
    }

    /// Ends them all, and returns when their processes are gone.
    pub async fn shutdown(&mut self) {
        let servers = std::mem::take(&mut self.servers);
        servers.iter().for_each(Server::cancel);
        join_all(servers.into_iter().map(Server::ended)).await;
    }
}
