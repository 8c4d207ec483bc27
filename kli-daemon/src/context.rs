//! What the model sees: from the records of a branch to the messages of the next request, and all that is
//! computed from them: estimates, cut points, previews, the system prompt. Pure; nothing here is ever stored.
//!
//! ```text
//! record ──Item::of──▶ Item (read once, cached)     Window: the items that count, from the kept boundary on
//! Window ──assemble──▶ messages for one model       Window ──find_cut──▶ what a compaction would summarise
//! ```
//!
//! A session keeps the [`Window`] of its branch and [`Window::push`]es what it appends, so that a turn costs
//! neither a walk nor a parse; any other branch is read by [`Window::read`], which stops at the kept boundary.
//! Leaves to others: where records come from (store), who summarises (compaction), JSON for a provider (dialect).

pub mod assemble;
pub mod cut;
pub mod estimate;
pub mod expand;
mod image;
mod item;
pub mod preview;
pub mod prompt;
mod script;
pub mod settings;
pub mod transcript;
mod window;

#[cfg(test)]
pub(crate) mod tests;

pub use assemble::{Assembled, assemble, continuation};
pub use cut::{Cut, find_cut};
pub use item::{Item, branch_summary_text, compaction_text};
pub use settings::Settings;
pub use window::{Window, boundary_warning};
