//! The commands for scripts, one function each.

use anyhow::bail;
use clap::CommandFactory;
use kli_client::api::{self, SessionInfo};
use kli_client::protocol::record::Entry;
use serde::Serialize;

use super::args::{Args, Command};
use super::context::{Context, text_of};
use super::out::{self, Look, Style};
use super::transcript::{self, Extent};
use super::{Exit, UsageError, run, text, tree};

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
        Command::Models => models(context).await?,
        Command::Export { session_id, format, output_file } => {
            let session_id = context.session(session_id.as_deref()).await?;
            let path = output_file.map(|p| text_of(&std::path::absolute(p)?)).transpose()?;
            export(context, session_id, format.into(), path).await?;
        }
        Command::Import { file, format, name } => {
            let params = api::ImportSessionParams {
                path: text_of(&std::path::absolute(file)?)?,
                format: Some(format.into()),
                work_dir: context.global.work_dir.as_ref().map(|_| context.work_dir()).transpose()?,
                name,
                ..Default::default()
            };
            print_session(context, &context.client.call::<api::ImportSession>(params).await?)?;
        }
        // These need no connection, or one of another kind; they were taken before.
        Command::Rpc { .. } | Command::Daemon(_) | Command::Bridge | Command::Completions { .. } => {}
    }
    Ok(Exit::Done)
}

pub fn completions(shell: clap_complete::Shell) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "kli", &mut script);
    out::print(&String::from_utf8_lossy(&script))?;
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

async fn ls(context: &Context, all: bool, archived: bool, limit: u64) -> anyhow::Result<()> {
    let work_dir = if all { None } else { Some(context.work_dir()?) };
    let mut listed = api::ListSessionsResult::default();
    loop {
        let params = api::ListSessionsParams {
            work_dir: work_dir.clone(),
            archived: archived.then_some(true),
            limit: Some(limit.saturating_sub(listed.sessions.len() as u64)),
            cursor: listed.next_cursor.take(),
            ..Default::default()
        };
        let page = context.client.call::<api::ListSessions>(params).await?;
        listed.sessions.extend(page.sessions);
        listed.unreadable.extend(page.unreadable);
        listed.next_cursor = page.next_cursor;
        if listed.next_cursor.is_none() || listed.sessions.len() as u64 >= limit {
            break;
        }
    }
    if context.global.json {
        return out::json(&listed);
    }
    let style = Style::of_stdout();
    for info in &listed.sessions {
        let dir =
            if all { format!("  {}", style.paint(Look::Dim, &text::one_line(&info.work_dir))) } else { String::new() };
        out::line(&format!("{}{dir}", transcript::session(info, 0, style)))?;
    }
    for file in &listed.unreadable {
        out::note(&format!("cannot read {}: {}", file.path, file.reason));
    }
    match work_dir {
        Some(dir) if listed.sessions.is_empty() => {
            out::note(&format!("no sessions in {dir}; `kli ls --all` lists those of all directories"));
        }
        _ if listed.next_cursor.is_some() => out::note("there are more; `-n` lists them"),
        _ => {}
    }
    Ok(())
}

/// All pages of the forest.
pub async fn forest(context: &Context, all: bool, archived: bool) -> anyhow::Result<api::GetForestResult> {
    let mut whole = api::GetForestResult::default();
    loop {
        let params = api::GetForestParams {
            work_dir: if all { None } else { Some(context.work_dir()?) },
            archived: archived.then_some(true),
            limit: None,
            cursor: whole.next_cursor.take(),
        };
        let page = context.client.call::<api::GetForest>(params).await?;
        whole.roots.extend(page.roots);
        whole.nodes.extend(page.nodes);
        whole.next_cursor = page.next_cursor;
        if whole.next_cursor.is_none() {
            return Ok(whole);
        }
    }
}

async fn ls_forest(context: &Context, all: bool, archived: bool) -> anyhow::Result<()> {
    let whole = forest(context, all, archived).await?;
    if context.global.json {
        return out::json(&whole);
    }
    let style = Style::of_stdout();
    for (info, depth) in in_forest_order(&whole) {
        out::line(&transcript::session(info, depth, style))?;
    }
    Ok(())
}

/// Each session below the one it forked from, and how deep. A session whose parent is not listed is a root.
pub fn in_forest_order(forest: &api::GetForestResult) -> Vec<(&SessionInfo, usize)> {
    let by_id: std::collections::HashMap<&str, &api::ForestNode> =
        forest.nodes.iter().map(|n| (n.info.session_id.as_str(), n)).collect();
    let is_child = |n: &api::ForestNode| n.info.parent_session.as_deref().is_some_and(|p| by_id.contains_key(p));
    let listed_roots = forest.roots.iter().filter_map(|id| by_id.get(id.as_str()).copied());
    let other_roots = forest.nodes.iter().filter(|n| !is_child(n));
    let mut seen = std::collections::HashSet::new();
    let mut order = Vec::with_capacity(forest.nodes.len());
    // A circle of parents, which only damage makes, is entered where it is first listed.
    for root in listed_roots.chain(other_roots).chain(&forest.nodes) {
        let mut stack = vec![(root, 0)];
        while let Some((node, depth)) = stack.pop() {
            if !seen.insert(node.info.session_id.as_str()) {
                continue;
            }
            order.push((&node.info, depth));
            let below = node.children.iter().rev().filter_map(|id| by_id.get(id.as_str()).copied());
            stack.extend(below.map(|child| (child, depth + 1)));
        }
    }
    order
}

async fn draw_tree(context: &Context, session: Option<&str>, view: api::TreeView) -> anyhow::Result<()> {
    let session_id = context.session(session).await?;
    let whole = context.tree(&session_id, view).await?;
    if context.global.json {
        return out::json(&whole);
    }
    let lines = tree::draw(&whole, Style::of_stdout());
    if lines.is_empty() {
        out::note("the tree is empty");
        return Ok(());
    }
    Ok(out::line(&lines.join("\n"))?)
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

async fn search(context: &Context, query: String, all: bool, limit: u64) -> anyhow::Result<()> {
    let params = api::SearchParams {
        query,
        session_id: match &context.global.session {
            Some(session) => Some(context.session(Some(session)).await?),
            None => None,
        },
        work_dir: if all || context.global.session.is_some() { None } else { Some(context.work_dir()?) },
        limit: Some(limit),
        ..Default::default()
    };
    let found = context.client.call::<api::Search>(params).await?;
    if context.global.json {
        return out::json(&found);
    }
    let style = Style::of_stdout();
    for hit in &found.hits {
        let place = format!("{} {}", transcript::session_id(&hit.session_id), tree::short(&hit.entry_id, 12));
        let who = hit.role.as_deref().unwrap_or(&hit.kind);
        let width = style.width.map_or(usize::MAX, |w| w.saturating_sub(place.len() + who.len() + 2));
        let preview = text::one_line(&hit.preview);
        let preview = text::cut(&preview, width.max(12));
        out::line(&format!(
            "{} {} {preview}",
            style.paint(Look::Dim, &place),
            style.paint(Look::Bold, &text::one_line(who))
        ))?;
    }
    if found.next_cursor.is_some() {
        out::note("there are more; `-n` shows them");
    }
    Ok(())
}

async fn models(context: &Context) -> anyhow::Result<()> {
    let listed = context.client.call::<api::ListModels>(api::NoParams {}).await?;
    if context.global.json {
        return out::json(&listed);
    }
    Ok(out::print(&list_models(&listed, None, Style::of_stdout()))?)
}

/// The models, one a line; the current one (else the default) is marked.
pub fn list_models(listed: &api::ListModelsResult, current: Option<&api::ModelRef>, style: Style) -> String {
    let marked = current.unwrap_or(&listed.default);
    let names: Vec<String> =
        listed.models.iter().map(|m| text::one_line(&format!("{}/{}", m.provider, m.model_id))).collect();
    let width = names.iter().map(|n| n.chars().count()).max().unwrap_or(0);
    let mut lines = String::new();
    for (model, name) in listed.models.iter().zip(&names) {
        let mark = if *name == marked.to_string() { "*" } else { " " };
        let cost = match (model.cost.input, model.cost.output) {
            (0.0, 0.0) => String::new(),
            (input, output) => format!("  ${input}/{output} per M"),
        };
        let mut about = format!("{}k{cost}", model.context_window / 1000);
        if !model.available {
            about = format!("{about}  not usable: {}", text::one_line(model.reason.as_deref().unwrap_or("?")));
        }
        lines.push_str(&format!("{mark} {}  {}\n", text::pad(name, width), style.paint(Look::Dim, &about)));
    }
    lines
}

async fn export(
    context: &Context,
    session_id: String,
    format: api::ExportFormat,
    path: Option<String>,
) -> anyhow::Result<()> {
    let params = api::ExportSessionParams { session_id, format, path, ..Default::default() };
    let exported = context.client.call::<api::ExportSession>(params).await?;
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
