//! What the person does: says something, answers a question, interrupts, leaves.

use kli_client::protocol::error::in_full;
use kli_client::{ErrorKind, api};

use super::slash::{self, Answer, Said};
use super::{Done, Repl, Trust, TrustQuestion, is_broken_pipe};
use crate::cli::out::Style;
use crate::cli::{Exit, text};

impl Repl {
    pub(super) async fn line(&mut self, line: String) -> anyhow::Result<()> {
        self.style = Style::of_stdout();
        self.render.resize(self.style);
        if let Some(question) = self.trust.take() {
            let said = match line.trim().to_ascii_lowercase().as_str() {
                "y" | "yes" => Trust::Yes,
                "n" | "no" => Trust::No,
                // A slip of the finger decides nothing.
                _ => {
                    self.trust = Some(TrustQuestion { shown: false, ..question });
                    return Ok(());
                }
            };
            return match self.trust(said).await {
                Err(e) if !is_broken_pipe(&e) => self.bad(&in_full(e.as_ref())),
                other => other,
            };
        }
        if self.asked.is_some() {
            match slash::answer(&line) {
                Some(answer) => return self.respond(answer).await,
                // Anything else that is no command asks again: a slip of the finger decides nothing.
                None if !line.trim_start().starts_with('/') => return self.question(),
                None => {}
            }
        }
        if let Some(begun) = line.strip_suffix('\\')
            && !self.reader.edits()
        {
            self.unfinished.push_str(begun);
            self.unfinished.push('\n');
            return Ok(());
        }
        let line = std::mem::take(&mut self.unfinished) + &line;
        let said = slash::read(&line);
        let leaves = matches!(&said, Said::Command(name, _) if name == "/quit");
        let result = match said {
            Said::Blank => Ok(()),
            _ if self.is_lost && self.made.is_some() && !leaves => match self.begin_anew().await {
                Ok(()) => self.carry_out(said).await,
                failed => failed,
            },
            said => self.carry_out(said).await,
        };
        match result {
            // What goes wrong with one line is told, and the next one is taken.
            Err(e) if !is_broken_pipe(&e) => self.bad(&in_full(e.as_ref())),
            other => other,
        }
    }

    async fn carry_out(&mut self, said: Said) -> anyhow::Result<()> {
        match said {
            Said::Blank => Ok(()),
            Said::Text(text) => self.say(text.replace("\\\n", "\n")).await,
            Said::Bash { command, hidden } => self.bash(command, hidden),
            Said::Command(name, rest) => self.command(&name, &rest).await,
        }
    }

    pub(super) fn trust_question(&mut self, files: &[String]) -> anyhow::Result<()> {
        self.line_out("This directory brings its own instructions for kli:")?;
        for file in files {
            self.line_out(&format!("  {}", text::one_line(file)))?;
        }
        self.show("Use them? Only if you trust whoever wrote them. [y]es / [n]o ")
    }

    /// Says of the session's directory whether its own configuration counts.
    pub(super) async fn trust(&mut self, said: Trust) -> anyhow::Result<()> {
        let work_dir = self.context.state(&self.session_id).await?.info.work_dir;
        let params = api::TrustWorkDirParams { work_dir, trusted: said == Trust::Yes };
        self.context.client.call::<api::TrustWorkDir>(params).await?;
        self.dim(match said {
            Trust::Yes => {
                "trusted: this directory's own configuration, skills and prompts count; /trust no takes it back"
            }
            Trust::No => {
                "not trusted: this directory's own configuration, skills and prompts do not count; /trust uses them"
            }
        })?;
        self.learn().await;
        let state = self.context.state(&self.session_id).await?;
        self.warnings(&state.info)
    }

    /// A prompt, or a word to the run that goes on.
    async fn say(&mut self, text: String) -> anyhow::Result<()> {
        if let Some(name) = slash::template(&text) {
            self.known(name).await?;
        }
        let expand = text.starts_with('/') || text.contains('@');
        let params = api::PromptParams {
            session_id: self.session_id.clone(),
            text,
            expand: expand.then_some(true),
            idempotency_key: Some(uuid::Uuid::new_v4().to_string()),
            ..Default::default()
        };
        let client = &self.context.client;
        let result = match self.run {
            Some(_) => client.call::<api::Steer>(params).await,
            None => match client.call::<api::Prompt>(params.clone()).await {
                // Another client was quicker.
                Err(e) if e.api().and_then(|e| e.kind()) == Some(ErrorKind::SessionBusy) => {
                    client.call::<api::Steer>(params).await
                }
                other => other,
            },
        }?;
        if let Some(entry) = &result.entry_id {
            self.render.is_ours(entry);
        }
        if result.queued {
            return self.dim("queued: it is said at the next turn");
        }
        self.run = Some(result.run_id);
        Ok(())
    }

    /// That there is such a prompt template or skill: a command that is misspelt is not for the model.
    async fn known(&self, name: &str) -> anyhow::Result<()> {
        let params = api::ListCommandsParams { session_id: Some(self.session_id.clone()), ..Default::default() };
        let known = self.context.client.call::<api::ListCommands>(params).await?.commands;
        if known.iter().any(|command| command.name == name) {
            return Ok(());
        }
        anyhow::bail!("there is no command /{name}; /help lists them (with a blank before it, it is said to the model)")
    }

    fn bash(&mut self, command: String, hidden: bool) -> anyhow::Result<()> {
        self.nothing_else()?;
        let client = self.context.client.clone();
        let params = api::BashParams {
            session_id: self.session_id.clone(),
            command,
            exclude_from_context: hidden.then_some(true),
            ..Default::default()
        };
        self.commanded = true;
        self.operation = Some(Box::pin(async move {
            let result = client.call::<api::Bash>(params).await;
            Done::Said(result.map(|r| {
                let code = r.exit_code.filter(|c| *c != 0).map(|c| format!("\nexit code {c}")).unwrap_or_default();
                let whole = r.full_output_path.map(|p| format!("\n(the whole output: {p})")).unwrap_or_default();
                format!("{}{code}{whole}", r.output.trim_end())
            }))
        }));
        Ok(())
    }

    /// One operation at a time.
    pub(super) fn nothing_else(&self) -> anyhow::Result<()> {
        if self.operation.is_some() {
            anyhow::bail!("something else goes on; Ctrl-C ends it");
        }
        Ok(())
    }

    pub(super) async fn respond(&mut self, answer: Answer) -> anyhow::Result<()> {
        let Some(approval) = self.approvals.pop_front() else {
            anyhow::bail!("nothing waits to be allowed");
        };
        self.asked = None;
        let (decision, message) = match answer {
            Answer::Allow => (api::Decision::Allow, None),
            Answer::Always => (api::Decision::AllowForSession, None),
            Answer::Deny(message) => (api::Decision::Deny, message),
        };
        self.answered.insert(approval.approval_id.clone());
        let params = api::RespondToApprovalParams {
            session_id: self.session_id.clone(),
            approval_id: approval.approval_id.clone(),
            decision,
            message,
        };
        match self.context.client.call::<api::RespondToApproval>(params).await {
            Ok(_) => Ok(()),
            Err(e) => {
                self.answered.remove(&approval.approval_id);
                let decision = e.api().and_then(|e| e.data.as_ref()).and_then(|d| d.get("decision"));
                match decision.and_then(|d| d.as_str()) {
                    Some(decision) => self.dim(&format!("somebody else was quicker: {decision}")),
                    None => self.bad(&e.to_string()),
                }
            }
        }
    }

    /// Ctrl-C, as a key while editing or as a signal: ends what goes on; a second one leaves.
    pub(super) async fn interrupt(&mut self) -> anyhow::Result<()> {
        match (self.is_busy(), self.aborting, self.terminal) {
            (true, false, _) => {}
            (true, true, _) | (false, _, false) => return self.leave(Exit::Aborted),
            (false, _, true) if self.leaving => return self.leave(Exit::Done),
            (false, _, true) => {
                self.leaving = true;
                self.unfinished.clear();
                return self.dim("Ctrl-C again leaves");
            }
        }
        self.aborting = true;
        let params = api::AbortParams { session_id: self.session_id.clone(), run_id: None };
        if let Err(e) = self.context.client.call::<api::Abort>(params).await {
            self.bad(&e.to_string())?;
        }
        Ok(())
    }

    pub(super) fn leave(&mut self, exit: Exit) -> anyhow::Result<()> {
        self.exit = Some(exit);
        if self.run.is_some() {
            self.dim("the run goes on; `kli --continue` comes back to it")?;
        }
        Ok(())
    }

    pub(super) fn question(&mut self) -> anyhow::Result<()> {
        if self.reader.is_editing() {
            return self.line_out("  allow? y, a (always this session) or n, or /allow /always /deny");
        }
        self.show("allow? [y]es / [a]lways this session / [n]o ")?;
        if !self.terminal {
            self.show("\n")?;
        }
        Ok(())
    }
}
