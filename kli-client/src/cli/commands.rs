//! The commands for scripts, one function each.

mod lists;

use anyhow::{Context as _, bail};
use clap::CommandFactory;
use kli_client::api::{self, SessionInfo};
use kli_client::protocol::record::Entry;
use serde::Serialize;

use super::args::{Args, Command};
use super::context::{Context, text_of};
use super::out::{self, Style};
use super::transcript::{self, Extent};
use super::{Exit, UsageError, run, text, tree};

pub use lists::{forest, in_forest_order, list_models};
use lists::{ls, ls_forest, models, search};

pub async fn run(context: &Context, command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::New(new) => print_session(context, &context.create(&new).await?)?,
        Command::Ls { all, forest: false, archived, limit } => ls(context, all, archived, limit).await?,
        Command::Ls { all, forest: true, archived, .. } => ls_forest(context, all, archived).await?,
        Command::Tree { session_id, view } => draw_tree(context, session_id.as_deref(), view.into()).await?,
        Command::Show { session_id, entry: None } => show_session(context, session_id.as_deref()).await?,
        Command::Show { session_id, entry: Some(entry) } => show_entry(context, session_id.as_deref(), &entry).await?,
        Command::Log { session_id, limit, follow } => log(context, session_id.as_deref(), limit, follow).await?,
        Command::Goto { entry, summarize, instructions, at } => {
            goto(context, &entry, Move { summarize, instructions, at }).await?;
        }
        Command::Fork { entry, at, before, name } => {
            let position = match (at, before) {
                (true, _) => Some(api::Position::At),
                (_, true) => Some(api::Position::Before),
                _ => None,
            };
            fork(context, &entry, position, name).await?;
        }
        Command::Clone { session_id, name } => {
            let session_id = context.session(session_id.as_deref()).await?;
            let params = api::CloneParams { session_id, name, ..Default::default() };
            let made = context.client.call::<api::CloneSession>(params).await?;
            print_made(context, &made, &made.session, None)?;
        }
        Command::Rewind { entry, name } => rewind(context, entry.as_deref(), name).await?,
        Command::Label { entry, label } => set_label(context, &entry, label).await?,
        Command::Name { name } => {
            let session_id = context.session(None).await?;
            let params = api::SetSessionNameParams { session_id, name };
            print_session(context, &context.client.call::<api::SetSessionName>(params).await?)?;
        }
        Command::Continue { session_id, output } => return run::go_on(context, session_id.as_deref(), output).await,
        Command::Abort { session_id } => return abort(context, session_id.as_deref()).await,
        Command::Steer { text, follow_up } => steer(context, text, follow_up).await?,
        Command::Search { query, all, limit } => search(context, query, all, limit).await?,
        Command::Models { all } => models(context, all).await?,
        Command::Export { session_id, format, output_file } => {
            let session_id = context.session(session_id.as_deref()).await?;
            let path = output_file.map(|p| text_of(&std::path::absolute(p)?)).transpose()?;
            export(context, session_id, format.into(), path).await?;
        }
        Command::Import { file, format, name } => {
            let params = api::ImportSessionParams {
                path: context.path(&file)?,
                format: Some(format.into()),
                work_dir: context.global.work_dir.as_ref().map(|_| context.work_dir()).transpose()?,
                name,
                ..Default::default()
            };
            let imported = context.client.call::<api::ImportSession>(params).await;
            let info = match &context.global.host {
                // Whose file is missing, say.
                Some(host) => imported.with_context(|| format!("on {host}"))?,
                None => imported?,
            };
            print_session(context, &info)?;
        }
        // These need no connection, or one of another kind; they were taken before.
        Command::Rpc { .. } | Command::Daemon(_) | Command::Bridge => {}
        Command::Completions { .. } | Command::Man { .. } => {}
    }
    Ok(Exit::Done)
}

pub fn completions(shell: clap_complete::Shell) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "kli", &mut script);
    out::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}

pub fn man(dir: Option<&std::path::Path>) -> anyhow::Result<Exit> {
    let Some(dir) = dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Args::command().disable_help_subcommand(true)).render(&mut page)?;
        out::print(&String::from_utf8_lossy(&page))?;
        return Ok(Exit::Done);
    };
    let written = std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(Args::command(), dir));
    written.with_context(|| format!("cannot write manual pages into {}", dir.display()))?;
    Ok(Exit::Done)
}

/// A session that was made or changed: its id alone, for `$(…)`.
fn print_session(context: &Context, info: &SessionInfo) -> anyhow::Result<()> {
    if context.global.json { out::json(info) } else { Ok(out::line(&text::one_line(&info.session_id))?) }
}

/// A session made from another, and the prompt before which it ends: the id on standard output, the text on
/// standard error, so that a script gets the id alone.
fn print_made(
    context: &Context,
    json: &impl Serialize,
    info: &SessionInfo,
    prompt: Option<&str>,
) -> anyhow::Result<()> {
    if context.global.json {
        return out::json(json);
    }
    if let Some(prompt) = prompt {
        out::note(&format!("the prompt there was: {prompt}"));
    }
    Ok(out::line(&text::one_line(&info.session_id))?)
}

async fn draw_tree(context: &Context, session: Option<&str>, view: api::TreeView) -> anyhow::Result<()> {
    let session_id = context.session(session).await?;
    let whole = context.tree(&session_id, view).await?;
    if context.global.json {
        return out::json(&whole);
    }
    warn(context, &session_id).await?;
    let lines = tree::draw(&whole, Style::of_stdout());
    if lines.is_empty() {
        out::note("the tree is empty");
        return Ok(());
    }
    Ok(out::line(&lines.join("\n"))?)
}

/// What is the matter with a session, so that nobody takes what is shown of it for all there is.
async fn warn(context: &Context, session_id: &str) -> anyhow::Result<()> {
    for warning in context.state(session_id).await?.info.warnings {
        out::note(&warning.message);
    }
    Ok(())
}

async fn show_session(context: &Context, session: Option<&str>) -> anyhow::Result<()> {
    let session_id = context.session(session).await?;
    let state = context.state(&session_id).await?;
    if context.global.json {
        return out::json(&state);
    }
    Ok(out::print(&describe(&state))?)
}

/// The state of a session, line by line.
pub fn describe(state: &api::SessionState) -> String {
    let info = &state.info;
    let mut lines = vec![
        ("session", info.session_id.clone()),
        ("title", info.title.clone()),
        ("directory", info.work_dir.clone()),
        ("file", info.path.clone().unwrap_or_else(|| "none: in memory only".into())),
        ("status", transcript::word(&info.status)),
        ("model", state.model().to_string()),
        ("mode", transcript::word(&state.mode)),
        ("leaf", state.leaf_id.clone().unwrap_or_else(|| "before the first entry".into())),
    ];
    let count = |n: Option<u64>| n.map_or_else(|| "?".to_owned(), |n| n.to_string());
    lines.push(("entries", format!("{}, messages {}", count(info.entry_count), count(info.message_count))));
    let context = &state.context;
    lines.push(("context", format!("{} of {} tokens ({:.0} %)", context.tokens, context.window, context.percent)));
    let usage = &state.usage;
    lines.push(("used", format!("{} tokens in, {} out, ${:.4}", usage.input, usage.output, usage.cost.total)));
    if let Some(parent) = &info.parent_session {
        lines.push(("forked from", parent.clone()));
    }
    for queued in state.queue.steer.iter().chain(&state.queue.follow_up) {
        lines.push(("queued", queued.text.clone()));
    }
    for approval in &state.pending_approvals {
        lines.push(("to allow", approval.title.clone()));
    }
    if state.interrupted {
        lines.push(("interrupted", "a crash cut a run off; `kli continue` takes it up".into()));
    }
    for warning in &info.warnings {
        lines.push(("warning", warning.message.clone()));
    }
    lines.into_iter().map(|(what, value)| format!("{} {}\n", text::pad(what, 11), text::one_line(&value))).collect()
}

async fn show_entry(context: &Context, session: Option<&str>, entry: &str) -> anyhow::Result<()> {
    let session_id = context.session(session).await?;
    let id = context.entry(&session_id, entry).await?;
    let params = api::GetEntriesParams { session_id, ids: Some(vec![id]), ..Default::default() };
    let found = context.client.call::<api::GetEntries>(params).await?;
    let Some(entry) = found.entries.first() else { bail!("there is no entry `{entry}`") };
    if context.global.json {
        return out::json(entry);
    }
    Ok(out::line(&transcript::entry(entry, Extent::Whole, Style::of_stdout()))?)
}

/// The branch of the leaf, root to leaf; at most the last `limit` entries.
pub async fn branch(context: &Context, session_id: &str, limit: Option<u64>) -> anyhow::Result<Vec<Entry>> {
    let mut pages: Vec<Vec<Entry>> = Vec::new();
    let mut left = limit;
    let mut cursor = None;
    loop {
        let params = api::GetBranchParams { session_id: session_id.into(), limit: left, cursor, ..Default::default() };
        let page = context.client.call::<api::GetBranch>(params).await?;
        left = left.map(|left| left.saturating_sub(page.entries.len() as u64));
        pages.push(page.entries);
        cursor = page.next_cursor;
        if cursor.is_none() || left == Some(0) {
            // The newest page comes first, each in the order of the branch.
            return Ok(pages.into_iter().rev().flatten().collect());
        }
    }
}

async fn log(context: &Context, session: Option<&str>, limit: Option<u64>, follow: bool) -> anyhow::Result<()> {
    let session_id = context.session(session).await?;
    let mut events = context.client.events(&session_id);
    if follow {
        // Before the branch is read, so that nothing falls between the two.
        events.start().await?;
    }
    warn(context, &session_id).await?;
    let entries = branch(context, &session_id, limit).await?;
    let mut seen: std::collections::HashSet<String> = std::collections::HashSet::new();
    for entry in &entries {
        if follow {
            seen.extend(entry.record().ok().map(|r| r.id));
        }
        print_entry(context, entry)?;
    }
    if !follow {
        return Ok(());
    }
    loop {
        let received = events.next().await?;
        if let api::EventBody::EntryAppended { entry } = received.event.body {
            let id = entry.record().ok().map(|r| r.id);
            if id.is_none_or(|id| !seen.contains(&id)) {
                print_entry(context, &entry)?;
            }
        }
    }
}

/// An entry of a log: a line of JSON, or text.
fn print_entry(context: &Context, entry: &Entry) -> anyhow::Result<()> {
    let style = Style::of_stdout();
    if context.global.json {
        let json = entry.json();
        return Ok(out::line(&if style.terminal { text::clean_json(json) } else { json.into() })?);
    }
    let shown = transcript::entry(entry, Extent::Brief, style);
    if shown.is_empty() { Ok(()) } else { Ok(out::line(&format!("{shown}\n"))?) }
}

struct Move {
    summarize: bool,
    instructions: Option<String>,
    at: bool,
}

async fn goto(context: &Context, entry: &str, how: Move) -> anyhow::Result<()> {
    let session_id = context.session(None).await?;
    let entry_id = if entry == "root" { None } else { Some(context.entry(&session_id, entry).await?) };
    let params = api::NavigateTreeParams {
        session_id,
        entry_id,
        summarize: how.summarize.then_some(true),
        instructions: how.instructions,
        position: how.at.then_some(api::Position::At),
        ..Default::default()
    };
    let moved = context.client.call::<api::NavigateTree>(params).await?;
    if context.global.json {
        return out::json(&moved);
    }
    let leaf = moved.leaf_id.as_deref().unwrap_or("before the first entry");
    out::note(&format!("the leaf is {leaf}; it was {}", moved.from_id.as_deref().unwrap_or("before the first entry")));
    if let Some(prompt) = &moved.editor_text {
        let style = Style::of_stdout();
        out::line(&if style.terminal { text::clean(prompt) } else { prompt.into() })?;
    }
    Ok(())
}

async fn fork(
    context: &Context,
    entry: &str,
    position: Option<api::Position>,
    name: Option<String>,
) -> anyhow::Result<()> {
    let session_id = context.session(None).await?;
    let entry_id = context.entry(&session_id, entry).await?;
    let params = api::ForkParams { session_id, entry_id, position, name, ..Default::default() };
    let made = context.client.call::<api::Fork>(params).await?;
    print_made(context, &made, &made.session, made.text.as_deref())
}

async fn rewind(context: &Context, entry: Option<&str>, name: Option<String>) -> anyhow::Result<()> {
    let session_id = context.session(None).await?;
    let entry_id = match entry {
        Some(entry) => Some(context.entry(&session_id, entry).await?),
        None => None,
    };
    let params = api::RewindParams { session_id, entry_id, name, ..Default::default() };
    let made = context.client.call::<api::Rewind>(params).await?;
    print_made(context, &made, &made.session, Some(&made.text))
}

async fn set_label(context: &Context, entry: &str, label: Option<String>) -> anyhow::Result<()> {
    let session_id = context.session(None).await?;
    let entry_id = context.entry(&session_id, entry).await?;
    let label = label.filter(|l| !l.is_empty());
    let set = context.client.call::<api::SetLabel>(api::SetLabelParams { session_id, entry_id, label }).await?;
    if context.global.json { out::json(&set) } else { Ok(()) }
}

async fn abort(context: &Context, session: Option<&str>) -> anyhow::Result<Exit> {
    let session_id = context.session(session).await?;
    let result = context.client.call::<api::Abort>(api::AbortParams { session_id, run_id: None }).await?;
    if context.global.json {
        out::json(&result)?;
    } else if !result.aborted {
        out::note("nothing goes on there");
    }
    Ok(Exit::Done)
}

async fn steer(context: &Context, text: String, follow_up: bool) -> anyhow::Result<()> {
    if text.trim().is_empty() {
        return Err(UsageError("there is nothing to say in an empty text".into()).into());
    }
    let session_id = context.session(None).await?;
    let params = api::PromptParams {
        session_id,
        text,
        idempotency_key: Some(uuid::Uuid::new_v4().to_string()),
        ..Default::default()
    };
    let result = match follow_up {
        true => context.client.call::<api::FollowUp>(params).await?,
        false => context.client.call::<api::Steer>(params).await?,
    };
    if context.global.json {
        return out::json(&result);
    }
    out::note(if result.queued { "queued" } else { "nothing went on there, so this began a run" });
    Ok(())
}

/// Writes a file that must not exist, for its owner's eyes, as the daemon does.
fn write_new(path: &str, bytes: &[u8]) -> anyhow::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match made.and_then(|mut file| std::io::Write::write_all(&mut file, bytes)) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => bail!("{path} exists already; name another file"),
        written => written.with_context(|| format!("cannot write {path}")),
    }
}

async fn export(
    context: &Context,
    session_id: String,
    format: api::ExportFormat,
    path: Option<String>,
) -> anyhow::Result<()> {
    // A daemon elsewhere would write the file there.
    let (here, there) = if context.global.host.is_some() { (path, None) } else { (None, path) };
    let params = api::ExportSessionParams { session_id, format, path: there, ..Default::default() };
    let mut exported = context.client.call::<api::ExportSession>(params).await?;
    if let Some(path) = here {
        write_new(&path, exported.content.take().unwrap_or_default().as_bytes())?;
        exported.path = Some(path);
    }
    match exported {
        result if context.global.json => out::json(&result),
        api::ExportSessionResult { content: Some(content), .. } => {
            // What goes to a file or a pipe has to be what was exported, to the byte.
            let style = Style::of_stdout();
            Ok(out::print(&if style.terminal { text::clean(&content) } else { content.into() })?)
        }
        api::ExportSessionResult { path, .. } => {
            out::note(&format!("written to {}", path.as_deref().unwrap_or("?")));
            Ok(())
        }
    }
}
