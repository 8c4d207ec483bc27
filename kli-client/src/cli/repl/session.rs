//! Which session the prompt is for: the present one, another, one in the place of an empty one.

use kli_client::api::{self, EventBody, SessionInfo};

use super::complete::Known;
use super::render::Render;
use super::{Repl, SHOWN_OF_OLD, TrustQuestion};
use crate::cli::args::Run;
use crate::cli::transcript::{self, Extent};
use crate::cli::{commands as scripts, text};

impl Repl {
    /// A session in which nothing was said ended with its daemon: nothing is lost, so another takes its place.
    pub(super) async fn begin_anew(&mut self) -> anyhow::Result<()> {
        let new = self.made.clone().unwrap_or_default();
        let made = self.context.create(&new).await?;
        self.attach(&made.session_id).await?;
        self.made = Some(new);
        self.is_lost = false;
        self.dim(&format!("connected again, session {}", transcript::session_id(&made.session_id)))
    }

    /// Changes to another session.
    pub(super) async fn attach(&mut self, session_id: &str) -> anyhow::Result<()> {
        let mut events = self.context.client.events(session_id);
        if self.terminal && self.context.global.host.is_none() {
            // A person decides when it has been long enough.
            events = events.patient();
        }
        // The state as it was when we came, before anything that we do.
        let first = events.next().await?;
        self.events = events;
        if self.session_id != session_id && self.made.take().is_some() {
            self.context.take_back(&self.session_id).await;
        }
        self.session_id = session_id.to_owned();
        self.run = None;
        self.approvals.clear();
        self.asked = None;
        self.warned.clear();
        self.aborting = false;
        self.commanded = false;
        self.render = Render::new(self.style);
        self.event(&first.event.body, first.event.run_id.as_deref()).await?;
        self.learn().await;
        Ok(())
    }

    /// What Tab completes. It does without what cannot be had.
    pub(super) async fn learn(&mut self) {
        if !self.reader.edits() {
            return;
        }
        let client = &self.context.client;
        let Ok(state) = self.context.state(&self.session_id).await else { return };
        let params = api::ListCommandsParams { session_id: Some(self.session_id.clone()), ..Default::default() };
        let commands = client.call::<api::ListCommands>(params).await.map(|l| l.commands).unwrap_or_default();
        let work_dir = state.info.work_dir;
        let params = api::ListSessionsParams { work_dir: Some(work_dir.clone()), ..Default::default() };
        let sessions = client.call::<api::ListSessions>(params).await.map(|l| l.sessions).unwrap_or_default();
        self.reader.known.set(Known {
            commands: commands.into_iter().map(|command| command.name).collect(),
            sessions: sessions.into_iter().filter_map(|info| info.name).collect(),
            work_dir: self.context.global.host.is_none().then(|| work_dir.into()),
        });
    }

    /// What the command line wants of a session that is there already.
    pub(super) async fn apply(&mut self, run: &Run) -> anyhow::Result<()> {
        self.context.give_servers(&self.session_id, &run.new).await?;
        if let Some(model) = &run.new.model {
            self.command("/model", model).await?;
        }
        if let Some(mode) = run.new.mode {
            self.command("/mode", &transcript::word(&api::Mode::from(mode))).await?;
        }
        if let Some(name) = &run.new.name {
            self.command("/name", name).await?;
        }
        Ok(())
    }

    pub(super) async fn greet(&mut self, is_new: bool) -> anyhow::Result<()> {
        if !self.terminal {
            return Ok(());
        }
        let state = self.context.state(&self.session_id).await?;
        if !is_new {
            self.show_end().await?;
        }
        let id = transcript::session_id(&self.session_id);
        let model = text::one_line(&state.model().to_string());
        let mode = transcript::word(&state.mode);
        let version = env!("CARGO_PKG_VERSION");
        if !state.untrusted.is_empty() {
            self.trust = Some(TrustQuestion { files: state.untrusted, shown: false });
        }
        self.dim(&format!("kli {version}, session {id}, {model}, mode {mode}; /help lists the commands"))
    }

    /// The end of the conversation so far.
    pub(super) async fn show_end(&mut self) -> anyhow::Result<()> {
        let entries = scripts::branch(&self.context, &self.session_id, Some(SHOWN_OF_OLD)).await?;
        for entry in &entries {
            let shown = transcript::entry(entry, Extent::Brief, self.style);
            if !shown.is_empty() {
                self.line_out(&shown)?;
            }
        }
        Ok(())
    }

    /// A session made from this one becomes the present one.
    pub(super) async fn change_to(&mut self, made: &SessionInfo, prompt: Option<String>) -> anyhow::Result<()> {
        self.attach(&made.session_id).await?;
        let id = transcript::session_id(&made.session_id);
        self.dim(&format!("session {id}: {}", text::one_line(&made.title)))?;
        self.offer(prompt)
    }

    /// What was chosen for a session in which nothing was said holds also for one that takes its place.
    pub(super) fn chosen(&mut self, body: &EventBody) {
        let Some(made) = &mut self.made else { return };
        match body {
            EventBody::ModeChanged { mode } => made.mode = Some((*mode).into()),
            EventBody::ModelChanged { provider, model_id } => made.model = Some(format!("{provider}/{model_id}")),
            _ => {}
        }
    }
}
