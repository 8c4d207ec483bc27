//! What most tests begin with: a scripted model, a daemon that uses it and keeps its sessions in files, and a
//! work directory.

use serde_json::{Value, json};

use crate::{Daemon, ModelServer, Reply, Session, Setup, fixtures};

pub struct Place {
    pub server: ModelServer,
    pub daemon: Daemon,
    pub work_dir: tempfile::TempDir,
}

impl Place {
    /// The model plays these replies, then says "done".
    #[track_caller]
    pub fn with(replies: impl IntoIterator<Item = Reply>) -> Place {
        let server = ModelServer::with(replies);
        let daemon = Setup::new().persisted().model(&server).start();
        Place { server, daemon, work_dir: fixtures::work_dir() }
    }

    #[track_caller]
    pub fn session(&self) -> Session {
        Session::create(&self.daemon, self.work_dir.path())
    }

    /// With further parameters of `createSession`.
    #[track_caller]
    pub fn session_with(&self, mut params: Value) -> Session {
        params["workDir"] = json!(self.work_dir.path());
        Session::create_with(&self.daemon, params)
    }
}
