//! Words that options take, and what they are on the wire.

use clap::ValueEnum;
use kli_protocol::api;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    #[default]
    Text,
    Json,
    StreamJson,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    Ask,
    Auto,
    Plan,
}

impl From<Mode> for api::Mode {
    fn from(mode: Mode) -> api::Mode {
        match mode {
            Mode::Ask => api::Mode::Ask,
            Mode::Auto => api::Mode::Auto,
            Mode::Plan => api::Mode::Plan,
        }
    }
}

impl From<api::Mode> for Mode {
    fn from(mode: api::Mode) -> Mode {
        match mode {
            api::Mode::Ask => Mode::Ask,
            api::Mode::Auto => Mode::Auto,
            api::Mode::Plan => Mode::Plan,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum View {
    All,
    Messages,
    Prompts,
    Labelled,
    Branches,
}

impl From<View> for api::TreeView {
    fn from(view: View) -> api::TreeView {
        match view {
            View::All => api::TreeView::All,
            View::Messages => api::TreeView::Messages,
            View::Prompts => api::TreeView::Prompts,
            View::Labelled => api::TreeView::Labelled,
            View::Branches => api::TreeView::Branches,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    Jsonl,
    Pi,
    Markdown,
    Html,
}

impl From<ExportFormat> for api::ExportFormat {
    fn from(format: ExportFormat) -> api::ExportFormat {
        match format {
            ExportFormat::Jsonl => api::ExportFormat::Jsonl,
            ExportFormat::Pi => api::ExportFormat::Pi,
            ExportFormat::Markdown => api::ExportFormat::Markdown,
            ExportFormat::Html => api::ExportFormat::Html,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ImportFormat {
    Auto,
    Kli,
    Pi,
    Kimi,
    Codex,
    Claude,
}

impl From<ImportFormat> for api::ImportFormat {
    fn from(format: ImportFormat) -> api::ImportFormat {
        match format {
            ImportFormat::Auto => api::ImportFormat::Auto,
            ImportFormat::Kli => api::ImportFormat::Kli,
            ImportFormat::Pi => api::ImportFormat::Pi,
            ImportFormat::Kimi => api::ImportFormat::Kimi,
            ImportFormat::Codex => api::ImportFormat::Codex,
            ImportFormat::Claude => api::ImportFormat::Claude,
        }
    }
}
