//! What there is: lists and forests of sessions, page by page, and text in them.

use std::collections::{HashMap, HashSet};

use kli_protocol::ApiError;
use kli_protocol::api::{
    ForestNode, GetForestParams, GetForestResult, ListSessionsParams, ListSessionsResult, SearchParams, SearchResult,
    SessionInfo,
};

use super::{Registry, api_error, blocking, canonical};
use crate::clock::parse_rfc3339;
use crate::session::{info, views};
use crate::store::{Cursor, Facts, Filter, Search};

/// Sessions of a page unless asked otherwise.
const LIST_PAGE: usize = 50;

impl Registry {
    /// Literal text in all sessions, or in one.
    pub async fn search(&self, params: SearchParams) -> Result<SearchResult, ApiError> {
        if params.query.trim().is_empty() {
            return Err(ApiError::invalid_params("query: say what to look for"));
        }
        let session_id = match &params.session_id {
            Some(id) => Some(self.find(id).await?.id.to_string()),
            None => None,
        };
        let search = Search {
            query: params.query,
            session_id,
            filter: filter(params.work_dir.as_deref(), params.archived, None)?,
            limit: views::page_limit(params.limit, views::PAGE)?,
            cursor: params.cursor.as_deref().map(|text| Cursor::parse(text).ok_or_else(no_cursor)).transpose()?,
        };
        let store = self.deps.store.clone();
        let (hits, next_cursor) = blocking(move || store.search(&search)).await?.map_err(api_error)?;
        Ok(SearchResult { hits, next_cursor })
    }

    pub async fn list(&self, params: ListSessionsParams) -> Result<ListSessionsResult, ApiError> {
        let limit = views::page_limit(params.limit, LIST_PAGE)?;
        let filter = filter(params.work_dir.as_deref(), params.archived, params.query)?;
        let store = self.deps.store.clone();
        let (facts, unreadable) = blocking(move || store.list(&filter)).await?;
        let after = params.cursor.as_deref().map(ListPlace::parse).transpose()?;
        let mut sessions = vec![];
        let mut next_cursor = None;
        let mut last = None;
        for facts in facts {
            let place = ListPlace::of(&facts);
            if after.as_ref().is_some_and(|after| place >= *after) {
                continue;
            }
            let session = self.info_of(facts);
            if params.status.is_some_and(|status| status != session.status) {
                continue;
            }
            if sessions.len() == limit {
                next_cursor = last.map(|place: ListPlace| place.cursor());
                break;
            }
            sessions.push(session);
            last = Some(place);
        }
        let unreadable = match params.cursor {
            None => unreadable,
            Some(_) => vec![],
        };
        Ok(ListSessionsResult { sessions, unreadable, next_cursor })
    }

    fn info_of(&self, facts: Facts) -> SessionInfo {
        let status = self.live(&facts.id).map(|handle| *handle.status.borrow()).unwrap_or_default();
        info::session_info(facts, status)
    }

    pub async fn forest(&self, params: GetForestParams) -> Result<GetForestResult, ApiError> {
        let limit = views::page_limit(params.limit, views::PAGE)?;
        let filter = filter(params.work_dir.as_deref(), params.archived, None)?;
        let store = self.deps.store.clone();
        let (facts, _) = blocking(move || store.list(&filter)).await?;
        // Oldest first, so that children stand in the order of their making.
        let mut by_age: Vec<&Facts> = facts.iter().collect();
        by_age.sort_by_cached_key(|facts| (parse_rfc3339(&facts.created_at).unwrap_or_default(), facts.id.clone()));
        let (roots, mut children) = planted(by_age.iter().map(|f| (f.id.as_str(), f.parent_session.as_deref())));
        let after = params.cursor.as_deref().map(ListPlace::parse).transpose()?;
        let mut left = facts
            .into_iter()
            .filter(|facts| after.as_ref().is_none_or(|after| ListPlace::of(facts) < *after))
            .peekable();
        let mut nodes = vec![];
        let mut last = None;
        for facts in left.by_ref().take(limit) {
            last = Some(ListPlace::of(&facts));
            let info = self.info_of(facts);
            let children = children.remove(&info.session_id).unwrap_or_default();
            nodes.push(ForestNode { info, children });
        }
        let next_cursor = last.filter(|_| left.peek().is_some()).map(|place| place.cursor());
        Ok(GetForestResult { roots, nodes, next_cursor })
    }
}

/// Roots, newest first, and the children of each session, from ids and parents by age, oldest first. Where parents go
/// in a circle, the oldest of it is a root.
fn planted<'a>(
    by_age: impl Iterator<Item = (&'a str, Option<&'a str>)> + Clone,
) -> (Vec<String>, HashMap<String, Vec<String>>) {
    let mut parents: HashMap<&str, Option<&str>> = by_age.clone().collect();
    let shown: HashSet<&str> = parents.keys().copied().collect();
    parents.values_mut().for_each(|parent| *parent = parent.filter(|parent| shown.contains(parent)));
    let mut rooted: HashSet<&str> = HashSet::new();
    for (id, _) in by_age.clone() {
        let mut way = vec![];
        let mut met: HashSet<&str> = HashSet::new();
        let mut at = Some(id);
        while let Some(id) = at.filter(|id| !rooted.contains(id)) {
            if !met.insert(id) {
                let circle: HashSet<&str> = way.iter().skip_while(|on| **on != id).copied().collect();
                let oldest = by_age.clone().map(|(id, _)| id).find(|id| circle.contains(id));
                oldest.and_then(|oldest| parents.insert(oldest, None));
                break;
            }
            way.push(id);
            at = parents.get(id).copied().flatten();
        }
        rooted.extend(way);
    }
    let mut children: HashMap<String, Vec<String>> = HashMap::new();
    let mut roots = vec![];
    for (id, _) in by_age {
        match parents.get(id).copied().flatten() {
            Some(parent) => children.entry(parent.to_owned()).or_default().push(id.to_owned()),
            None => roots.push(id.to_owned()),
        }
    }
    roots.reverse();
    (roots, children)
}

fn filter(work_dir: Option<&str>, archived: Option<bool>, query: Option<String>) -> Result<Filter, ApiError> {
    Ok(Filter { work_dir: work_dir.map(canonical).transpose()?, archived: archived == Some(true), query })
}

/// Where a session stands in a list: newest first, then by id. A cursor names the last one of its page, so that
/// new sessions shift nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ListPlace {
    updated_ms: u64,
    id: String,
}

impl ListPlace {
    fn of(facts: &Facts) -> ListPlace {
        ListPlace { updated_ms: parse_rfc3339(&facts.updated_at).unwrap_or_default(), id: facts.id.clone() }
    }

    fn cursor(&self) -> String {
        format!("{}|{}", self.updated_ms, self.id)
    }

    fn parse(text: &str) -> Result<ListPlace, ApiError> {
        text.split_once('|')
            .and_then(|(updated, id)| Some(ListPlace { updated_ms: updated.parse().ok()?, id: id.to_owned() }))
            .ok_or_else(no_cursor)
    }
}

fn no_cursor() -> ApiError {
    ApiError::invalid_params("cursor: none that was given; begin without a cursor")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_session_of_a_forest_hangs_on_a_root() {
        let cases = [
            ("a b:a c:b d:a", "a", "a>b a>d b>c"),
            ("a b:gone c:c", "c b a", ""),
            ("c1:c2 c2:c3 c3:c1 hang:c2", "c1", "c1>c3 c2>hang c3>c2"),
            ("hang:c2 c1:c2 c2:c1", "c1", "c1>c2 c2>hang"),
            ("a:b b:a c:d d:c", "c a", "a>b c>d"),
        ];
        for (made, roots_right, links_right) in cases {
            let made: Vec<_> =
                made.split(' ').map(|one| one.split_once(':').map_or((one, None), |(id, p)| (id, Some(p)))).collect();
            let (roots, children) = planted(made.iter().copied());
            let mut links: Vec<String> =
                children.iter().flat_map(|(p, all)| all.iter().map(move |id| format!("{p}>{id}"))).collect();
            links.sort();
            let mut right: Vec<&str> = links_right.split_whitespace().collect();
            right.sort_unstable();
            assert_eq!(
                (roots.join(" ").as_str(), links),
                (roots_right, right.iter().map(ToString::to_string).collect())
            );
        }
    }
}
