//! Commands that list: sessions, the forest, hits of a search, models.

use kli_client::api::{self, SessionInfo};

use super::Context;
use crate::cli::out::{self, Look, Style};
use crate::cli::{UsageError, text, transcript, tree};

pub(super) async fn ls(context: &Context, all: bool, archived: bool, limit: u64) -> anyhow::Result<()> {
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

pub(super) async fn ls_forest(context: &Context, all: bool, archived: bool) -> anyhow::Result<()> {
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

pub(super) async fn search(context: &Context, query: String, all: bool, limit: u64) -> anyhow::Result<()> {
    if query.trim().is_empty() {
        return Err(UsageError("there is nothing to look for in an empty text".into()).into());
    }
    let here = !all && context.global.session.is_none();
    let params = api::SearchParams {
        query,
        session_id: match &context.global.session {
            Some(session) => Some(context.session(Some(session)).await?),
            None => None,
        },
        work_dir: if here { Some(context.work_dir()?) } else { None },
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
    if found.hits.is_empty() {
        out::note(if here { "nothing found here; `--all` looks in all directories" } else { "nothing found" });
    }
    Ok(())
}

pub(super) async fn models(context: &Context, all: bool) -> anyhow::Result<()> {
    let listed = context.client.call::<api::ListModels>(api::NoParams {}).await?;
    if context.global.json {
        return out::json(&listed);
    }
    let style = Style::of_stdout();
    let shown: Vec<&api::ModelInfo> = listed.models.iter().filter(|m| all || m.available).collect();
    let mut lines = list_models(&shown, &listed.default, style);
    if !all {
        lines.extend(unusable(&listed.models).into_iter().map(|line| style.paint(Look::Dim, &line)));
    }
    Ok(out::line(&lines.join("\n"))?)
}

/// Models, one a line; the current one is marked.
pub fn list_models(models: &[&api::ModelInfo], current: &api::ModelRef, style: Style) -> Vec<String> {
    let name = |m: &api::ModelInfo| text::one_line(&format!("{}/{}", m.provider, m.model_id));
    let width = models.iter().map(|m| name(m).chars().count()).max().unwrap_or(0);
    let line = |model: &&api::ModelInfo| {
        let mark = if name(model) == current.to_string() { "*" } else { " " };
        let cost = match (model.cost.input, model.cost.output) {
            (0.0, 0.0) => String::new(),
            (input, output) => format!("  ${input}/{output} per M"),
        };
        let usable = if model.available { "" } else { "  (not usable)" };
        let about = format!("{}k{cost}{usable}", model.context_window / 1000);
        format!("{mark} {}  {}", text::pad(&name(model), width), style.paint(Look::Dim, &about))
    };
    models.iter().map(line).collect()
}

/// Why models cannot be used, once for each provider and reason.
pub fn unusable(models: &[api::ModelInfo]) -> Vec<String> {
    let mut reasons: Vec<(String, String, usize)> = Vec::new();
    for model in models.iter().filter(|m| !m.available) {
        let reason = text::one_line(model.reason.as_deref().unwrap_or("not usable"));
        match reasons.iter_mut().find(|(provider, r, _)| *provider == model.provider && *r == reason) {
            Some((_, _, count)) => *count += 1,
            None => reasons.push((model.provider.clone(), reason, 1)),
        }
    }
    let line = |(provider, reason, count): (String, String, usize)| {
        let models = if count == 1 { "model" } else { "models" };
        format!("- {} ({count} {models}): {reason}", text::one_line(&provider))
    };
    reasons.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(nodes: &[(&str, Option<&str>, &[&str])], roots: &[&str], order: &[(&str, usize)]) {
        let nodes = nodes.iter().map(|(id, parent, children)| api::ForestNode {
            info: SessionInfo {
                session_id: (*id).into(),
                parent_session: parent.map(str::to_owned),
                ..Default::default()
            },
            children: children.iter().map(|c| (*c).to_owned()).collect(),
        });
        let forest = api::GetForestResult {
            roots: roots.iter().map(|r| (*r).to_owned()).collect(),
            nodes: nodes.collect(),
            next_cursor: None,
        };
        let got: Vec<(&str, usize)> =
            in_forest_order(&forest).into_iter().map(|(info, depth)| (info.session_id.as_str(), depth)).collect();
        assert_eq!(got, order);
    }

    #[test]
    fn forks_stand_below_what_they_forked_from() {
        check(
            &[
                ("a", None, &["b", "c"]),
                ("b", Some("a"), &["d"]),
                ("c", Some("a"), &[]),
                ("d", Some("b"), &[]),
                ("e", None, &[]),
            ],
            &["e", "a"],
            &[("e", 0), ("a", 0), ("b", 1), ("d", 2), ("c", 1)],
        );
    }

    #[test]
    fn each_session_is_listed_once_whatever_its_parents_are() {
        check(&[("b", Some("gone"), &[])], &[], &[("b", 0)]);
        check(&[("a", Some("b"), &["b"]), ("b", Some("a"), &["a"])], &[], &[("a", 0), ("b", 1)]);
        check(&[("a", Some("a"), &["a"])], &["a", "gone"], &[("a", 0)]);
    }
}
