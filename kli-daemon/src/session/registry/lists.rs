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
        let shown: HashSet<String> = facts.iter().map(|f| f.id.clone()).collect();
        let mut children: HashMap<String, Vec<String>> = HashMap::new();
        let mut roots = vec![];
        // Oldest first, so that children stand in the order of their making.
        let mut by_age: Vec<&Facts> = facts.iter().collect();
        by_age.sort_by_cached_key(|facts| (parse_rfc3339(&facts.created_at).unwrap_or_default(), facts.id.clone()));
        for facts in by_age {
            match facts.parent_session.as_ref().filter(|p| shown.contains(*p) && **p != facts.id) {
                Some(parent) => children.entry(parent.clone()).or_default().push(facts.id.clone()),
                None => roots.push(facts.id.clone()),
            }
        }
        roots.reverse();
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
