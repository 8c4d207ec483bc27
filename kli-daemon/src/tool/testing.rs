//! A directory with files, and a call made in it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use kli_protocol::record::Block;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Tool, ToolContext, ToolOutput, jobs};

pub(crate) struct Place {
    dir: tempfile::TempDir,
    pub context: ToolContext,
    pub printed: Arc<Mutex<String>>,
}

impl Place {
    pub(crate) fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let printed = Arc::new(Mutex::new(String::new()));
        let sink = printed.clone();
        let context = ToolContext {
            session_id: "s".into(),
            tool_call_id: "c".into(),
            work_dir: dir.path().canonicalize().unwrap(),
            env: Arc::new(BTreeMap::new()),
            cancel: CancellationToken::new(),
            progress: Arc::new(move |text| sink.lock().unwrap().push_str(text)),
            images: true,
            jobs: Arc::new(jobs::Jobs::default()),
            sandbox: super::sandbox::Sandbox::Off,
        };
        Place { dir, context, printed }
    }

    pub(crate) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(path)
    }

    pub(crate) fn write(&self, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    pub(crate) async fn call(&self, tool: &dyn Tool, arguments: Value) -> ToolOutput {
        // Whatever is asked, the question to a person must come too.
        tool.outline(arguments.as_object().unwrap(), &self.context.work_dir);
        tool.call(arguments.as_object().unwrap().clone(), self.context.clone()).await
    }
}

/// All text of an output.
pub(crate) fn text(output: &ToolOutput) -> String {
    output.content.iter().filter_map(Block::as_text).collect()
}

/// A file of the collection of failure cases, where it is at hand.
pub(crate) fn shared(name: &str) -> Option<Vec<u8>> {
    let root = std::env::var_os("KLI_SHARED")
        .map(PathBuf::from)
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"));
    let bytes = std::fs::read(root.join(name)).ok();
    if bytes.is_none() {
        eprintln!("skipped: {name} is not here");
    }
    bytes
}
