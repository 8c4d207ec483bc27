//! The commands of the interactive prompt that begin with a slash.

use anyhow::{Context as _, bail};
use kli_client::api;

use super::slash::{Answer, HELP, number};
use super::{Done, Exit, Listed, Repl, Trust};
use crate::cli::args::NewSession;
use crate::cli::{commands as scripts, text, transcript, tree};

/// Sessions and prompts that a list shows.
const LISTED: usize = 100;

impl Repl {
    pub(super) async fn command(&mut self, name: &str, rest: &str) -> anyhow::Result<()> {
        match name {
            "/help" => self.line_out(HELP),
            "/quit" => self.leave(Exit::Done),
            "/tree" => self.tree().await,
            "/goto" => self.goto(rest).await,
            "/fork" => self.fork(rest).await,
            "/clone" => {
                let params = api::CloneParams { session_id: self.session_id.clone(), ..Default::default() };
                let made = self.context.client.call::<api::CloneSession>(params).await?;
                self.change_to(&made.session, None).await
            }
            "/rewind" => self.rewind(rest).await,
            "/resume" => self.resume(rest).await,
            "/new" => {
                let name = (!rest.is_empty()).then(|| rest.to_owned());
                let new = NewSession { name, ..Default::default() };
                let made = self.context.create(&new).await?;
                self.change_to(&made, None).await?;
                self.made = Some(new);
                Ok(())
            }
            "/label" => self.label(rest).await,
            "/name" if rest.is_empty() => bail!("/name needs a text; `/name -` takes the name away"),
            "/name" => {
                let name = if rest == "-" { String::new() } else { rest.into() };
                let params = api::SetSessionNameParams { session_id: self.session_id.clone(), name };
                let info = self.context.client.call::<api::SetSessionName>(params).await?;
                self.dim(&format!("this session is called {}", text::one_line(&info.title)))
            }
            "/model" => self.model(rest).await,
            "/mode" => self.mode(rest).await,
            "/compact" => self.compact(rest),
            "/trust" => match rest {
                "" | "yes" => self.trust(Trust::Yes).await,
                "no" => self.trust(Trust::No).await,
                other => bail!("/trust or /trust no, not {other}"),
            },
            "/continue" => {
                let params = api::ContinueRunParams { session_id: self.session_id.clone(), wait: None };
                self.run = Some(self.context.client.call::<api::ContinueRun>(params).await?.run_id);
                Ok(())
            }
            "/abort" if self.is_busy() => {
                self.aborting = false;
                self.interrupt().await
            }
            "/abort" => bail!("nothing goes on"),
            "/queue" => self.queue(rest).await,
            "/allow" => self.respond(Answer::Allow).await,
            "/always" => self.respond(Answer::Always).await,
            "/deny" => self.respond(Answer::Deny((!rest.is_empty()).then(|| rest.to_owned()))).await,
            "/session" => {
                let described = scripts::describe(&self.context.state(&self.session_id).await?);
                self.line_out(described.trim_end())
            }
            other => bail!("there is no command {other}; /help lists them"),
        }
    }

    async fn tree(&mut self) -> anyhow::Result<()> {
        let whole = self.context.tree(&self.session_id, api::TreeView::All).await?;
        match tree::draw(&whole, self.style) {
            lines if lines.is_empty() => self.dim("the tree is empty"),
            lines => self.line_out(&lines.join("\n")),
        }
    }

    async fn goto(&mut self, rest: &str) -> anyhow::Result<()> {
        if rest.is_empty() {
            bail!("/goto needs an entry: an id that /tree shows, a label, or root");
        }
        let (entry, summary) = match rest.split_once(" summarize") {
            Some((entry, instructions)) => (entry.trim(), Some(instructions.trim())),
            None => (rest, None),
        };
        let entry_id = if entry == "root" { None } else { Some(self.context.entry(&self.session_id, entry).await?) };
        let mut params =
            api::NavigateTreeParams { session_id: self.session_id.clone(), entry_id, ..Default::default() };
        let Some(instructions) = summary else {
            let moved = self.context.client.call::<api::NavigateTree>(params).await?;
            return self.moved(moved);
        };
        self.nothing_else()?;
        params.summarize = Some(true);
        params.instructions = (!instructions.is_empty()).then(|| instructions.to_owned());
        let client = self.context.client.clone();
        self.operation = Some(Box::pin(async move { Done::Moved(client.call::<api::NavigateTree>(params).await) }));
        Ok(())
    }

    /// The move itself is seen as an event.
    pub(super) fn moved(&mut self, moved: api::NavigateTreeResult) -> anyhow::Result<()> {
        self.offer(moved.editor_text)
    }

    /// The prompts of the branch, newest first, numbered; so many as fit a screen or two.
    async fn list_prompts(&mut self) -> anyhow::Result<Vec<String>> {
        let params = api::PageParams { session_id: self.session_id.clone(), limit: Some(LISTED as u64), cursor: None };
        let found = self.context.client.call::<api::GetForkMessages>(params).await?.messages;
        let mut lines = Vec::new();
        for (n, message) in (1..).zip(&found) {
            let line = format!("{n:>3}  {}  {}", tree::short(&message.entry_id, 8), text::one_line(&message.text));
            lines.push(self.style.width.map_or(line.clone(), |w| text::cut(&line, w).into_owned()));
        }
        // The newest is the last, next to the prompt.
        lines.reverse();
        if lines.is_empty() {
            bail!("there is no prompt on this branch");
        }
        self.line_out(&lines.join("\n"))?;
        Ok(found.into_iter().map(|m| m.entry_id).collect())
    }

    async fn fork(&mut self, rest: &str) -> anyhow::Result<()> {
        if rest.is_empty() {
            let prompts = self.list_prompts().await?;
            self.listed = Listed::Prompts(prompts);
            return self.dim("/fork N makes a session that ends before that prompt");
        }
        let entry_id = self.prompt_or_entry(rest).await?;
        let params = api::ForkParams { session_id: self.session_id.clone(), entry_id, ..Default::default() };
        let made = self.context.client.call::<api::Fork>(params).await?;
        self.change_to(&made.session, made.text).await
    }

    async fn rewind(&mut self, rest: &str) -> anyhow::Result<()> {
        let entry_id = if rest.is_empty() { None } else { Some(self.prompt_or_entry(rest).await?) };
        let params = api::RewindParams { session_id: self.session_id.clone(), entry_id, ..Default::default() };
        let made = self.context.client.call::<api::Rewind>(params).await?;
        self.change_to(&made.session, Some(made.text)).await
    }

    /// A number of the last list of prompts (else of those there are now), or an entry.
    async fn prompt_or_entry(&mut self, given: &str) -> anyhow::Result<String> {
        let Some(n) = number(given) else { return self.context.entry(&self.session_id, given).await };
        if !matches!(self.listed, Listed::Prompts(_)) {
            let prompts = self.list_prompts().await?;
            self.listed = Listed::Prompts(prompts);
        }
        let Listed::Prompts(prompts) = &self.listed else { bail!("there is no list") };
        let entry = n.checked_sub(1).and_then(|n| prompts.get(n)).cloned();
        self.listed = Listed::Nothing;
        entry.with_context(|| format!("there is no prompt {given} in the list"))
    }

    async fn resume(&mut self, rest: &str) -> anyhow::Result<()> {
        if rest.is_empty() {
            return self.list_sessions().await;
        }
        let chosen = match (number(rest), &self.listed) {
            (Some(n), Listed::Sessions(ids)) => {
                let id = n.checked_sub(1).and_then(|n| ids.get(n)).cloned();
                id.with_context(|| format!("there is no session {rest} in the list"))?
            }
            (Some(_), _) => bail!("/resume alone lists the sessions; then give the number"),
            (None, _) => rest.to_owned(),
        };
        let params = api::OpenSessionParams { session_id: Some(chosen.clone()), ..Default::default() };
        let info = match chosen.contains('/') {
            true => self.context.open(&chosen).await?,
            false => self.context.client.call::<api::OpenSession>(params).await?,
        };
        self.attach(&info.session_id).await?;
        self.show_end().await?;
        let id = transcript::session_id(&info.session_id);
        self.dim(&format!("session {id}: {}", text::one_line(&info.title)))
    }

    /// The sessions of this directory, each under the one that it forked from.
    async fn list_sessions(&mut self) -> anyhow::Result<()> {
        let forest = scripts::forest(&self.context, false, false).await?;
        let order = scripts::in_forest_order(&forest);
        let mut ids = Vec::new();
        let mut lines = Vec::new();
        let style = crate::cli::out::Style { width: self.style.width.map(|w| w.saturating_sub(6)), ..self.style };
        for (n, (info, depth)) in (1..).zip(order.iter().take(LISTED)) {
            let mark = if info.session_id == self.session_id { "*" } else { " " };
            lines.push(format!("{n:>3} {mark} {}", transcript::session(info, *depth, style)));
            ids.push(info.session_id.clone());
        }
        if order.len() > LISTED {
            lines.push(format!("    … {} more: `kli ls` lists them", order.len() - LISTED));
        }
        self.listed = Listed::Sessions(ids);
        if lines.is_empty() {
            bail!("there are no sessions in this directory");
        }
        self.line_out(&lines.join("\n"))?;
        self.dim("/resume N changes to one of them")
    }

    /// `TEXT` for the leaf, or `ENTRY TEXT`, where the first word is an entry's id.
    async fn label(&mut self, rest: &str) -> anyhow::Result<()> {
        if rest.is_empty() {
            bail!("/label needs a text; `/label -` takes the leaf's label away");
        }
        let named = match rest.split_once(char::is_whitespace) {
            Some((word, label)) if word.len() >= 4 => {
                let params = api::GetEntriesParams {
                    session_id: self.session_id.clone(),
                    ids: Some(vec![word.to_owned()]),
                    ..Default::default()
                };
                let found = self.context.client.call::<api::GetEntries>(params).await.ok();
                let id = found.and_then(|f| f.entries.first()?.record().ok()).map(|r| r.id);
                id.map(|id| (id, label.trim()))
            }
            _ => None,
        };
        let (entry_id, label) = match named {
            Some(named) => named,
            None => (self.context.entry(&self.session_id, "leaf").await?, rest),
        };
        let label = (label != "-").then(|| label.to_owned());
        let params = api::SetLabelParams { session_id: self.session_id.clone(), entry_id, label };
        // That it is set is seen as an event.
        self.context.client.call::<api::SetLabel>(params).await?;
        Ok(())
    }

    async fn model(&mut self, rest: &str) -> anyhow::Result<()> {
        if rest.is_empty() {
            let listed = self.context.client.call::<api::ListModels>(api::NoParams {}).await?;
            let current = self.context.state(&self.session_id).await?.model();
            let usable: Vec<&api::ModelInfo> = listed.models.iter().filter(|m| m.available).collect();
            let lines = scripts::list_models(&usable, &current, self.style);
            let numbered: Vec<String> = (1..).zip(&lines).map(|(n, l): (usize, _)| format!("{n:>3} {l}")).collect();
            let refs =
                usable.iter().map(|m| api::ModelRef { provider: m.provider.clone(), model_id: m.model_id.clone() });
            self.listed = Listed::Models(refs.collect());
            self.line_out(&numbered.join("\n"))?;
            if usable.len() < listed.models.len() {
                let rest = listed.models.len() - usable.len();
                self.dim(&format!("{rest} more need a key or a server: `kli models` says which"))?;
            }
            return self.dim("/model N or /model PROVIDER/MODEL changes to one");
        }
        let model = match (number(rest), &self.listed) {
            (Some(n), Listed::Models(models)) => {
                let model = n.checked_sub(1).and_then(|n| models.get(n)).cloned();
                model.with_context(|| format!("there is no model {rest} in the list"))?
            }
            _ => self.context.model(rest).await?,
        };
        let params = api::SetModelParams {
            session_id: self.session_id.clone(),
            provider: model.provider,
            model_id: model.model_id,
        };
        self.context.client.call::<api::SetModel>(params).await?;
        Ok(())
    }

    async fn mode(&mut self, rest: &str) -> anyhow::Result<()> {
        let mode = match rest {
            "ask" => api::Mode::Ask,
            "auto" => api::Mode::Auto,
            "plan" => api::Mode::Plan,
            "" => {
                let mode = self.context.state(&self.session_id).await?.mode;
                let mode = transcript::word(&mode);
                return self.dim(&format!("mode {mode}; /mode ask, auto or plan changes it"));
            }
            other => bail!(
                "there is no mode `{other}`: ask (what changes something needs a person), auto (nothing does), plan (nothing may change anything)"
            ),
        };
        let params = api::SetModeParams { session_id: self.session_id.clone(), mode };
        self.context.client.call::<api::SetMode>(params).await?;
        Ok(())
    }

    fn compact(&mut self, rest: &str) -> anyhow::Result<()> {
        self.nothing_else()?;
        let client = self.context.client.clone();
        let params = api::CompactParams {
            session_id: self.session_id.clone(),
            instructions: (!rest.is_empty()).then(|| rest.to_owned()),
            leaf_id: None,
        };
        self.operation = Some(Box::pin(async move {
            let result = client.call::<api::Compact>(params).await;
            Done::Said(result.map(|r| format!("{}\n({} → {} tokens)", r.summary, r.tokens_before, r.tokens_after)))
        }));
        Ok(())
    }

    async fn queue(&mut self, rest: &str) -> anyhow::Result<()> {
        let session_id = self.session_id.clone();
        let (queue, what) = match rest {
            "" => (self.context.state(&session_id).await?.queue, "nothing is queued"),
            "clear" => {
                let params = api::SessionParams { session_id };
                (self.context.client.call::<api::ClearQueue>(params).await?, "nothing was queued")
            }
            _ => bail!("/queue shows what waits to be said; /queue clear takes it back"),
        };
        let said: Vec<String> =
            queue.steer.iter().chain(&queue.follow_up).map(|q| transcript::prompt(&q.text, self.style)).collect();
        if said.is_empty() { self.dim(what) } else { self.line_out(&said.join("\n")) }
    }
}
