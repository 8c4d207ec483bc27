//! What a list shows of a session.

use kli_protocol::api::{SessionInfo, Status};

use crate::store::{Facts, title};

pub(super) fn session_info(facts: Facts, status: Status) -> SessionInfo {
    SessionInfo {
        title: title(facts.name.as_deref(), facts.first_prompt.as_deref()),
        session_id: facts.id,
        work_dir: facts.work_dir,
        name: facts.name,
        fork_prompt: facts.fork_prompt,
        last_prompt: facts.last_prompt,
        created_at: facts.created_at,
        updated_at: facts.updated_at,
        entry_count: facts.entry_count,
        message_count: facts.message_count,
        parent_session: facts.parent_session,
        fork_entry_id: facts.fork_entry_id,
        persisted: facts.persisted,
        path: facts.path.map(|p| p.display().to_string()),
        archived: facts.archived,
        read_only: facts.read_only.is_some(),
        status,
        warnings: facts.warnings,
    }
}
