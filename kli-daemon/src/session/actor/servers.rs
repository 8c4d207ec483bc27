//! The session's MCP servers.

use kli_protocol::api::{EventBody, Warning};

use super::{Actor, Message};
use crate::mcp::{Scene, Servers, Settings};
use crate::provider::http::Clients;

impl Actor {
    /// Others than before; those end.
    pub fn set_servers(&mut self, settings: Settings) {
        let mut before = std::mem::take(&mut self.mcp);
        tokio::spawn(async move { before.shutdown().await });
        self.start_servers(settings);
        self.tell_info();
    }

    pub(super) fn start_servers(&mut self, settings: Settings) {
        if settings.is_empty() {
            return;
        }
        let me = self.me.clone();
        let changed = move |news: Option<Warning>| {
            let me = me.clone();
            tokio::spawn(async move {
                // The session may be gone, or on its way.
                if let Some(mailbox) = me.upgrade() {
                    let call = Box::new(move |actor: &mut Actor| actor.server_changed(news));
                    let _ = mailbox.send(Message::Call(call)).await;
                }
            });
        };
        let scene = Scene {
            work_dir: self.work_dir().into(),
            env: self.env.clone(),
            jobs: self.jobs.clone(),
            clients: Clients::new(),
            changed: Box::new(changed),
        };
        self.mcp = Servers::start(settings, scene);
    }

    fn server_changed(&mut self, news: Option<Warning>) {
        if let Some(Warning { kind, message, .. }) = news {
            self.publish(EventBody::Warning { kind, message });
        }
        self.tell_info();
    }

    /// Names that no client's tool may have.
    pub fn server_tools(&self) -> Vec<String> {
        self.mcp.tools().iter().map(|tool| tool.spec().name.clone()).collect()
    }
}
