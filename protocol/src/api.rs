//! Every method and event of the daemon, once.
//!
//! A method is a type that implements [`Method`]; `methods!` lists them all. The server registers from that
//! list, the typed client calls by it, and the OpenRPC document is printed from it, so none can drift.
//!
//! A parameter that is null counts as absent, except `entryId`, `leafId` and `label`, where null has a meaning;
//! an unknown one is refused by its name. Parameters by position come in the order of the struct's fields.

mod daemon;
mod decode;
mod events;
mod runs;
mod sessions;
mod tree;

pub use daemon::*;
pub use decode::{decode_params, param_names};
pub use events::*;
pub use runs::*;
pub use sessions::*;
pub use tree::*;

use serde::{Serialize, de::DeserializeOwned};

/// One RPC method.
pub trait Method: Send + Sync + 'static {
    const NAME: &'static str;
    /// One sentence or two for the reference.
    const DOC: &'static str;
    /// How calls of it stand to others on the same connection.
    const ORDER: Order;
    type Params: Serialize + DeserializeOwned + Send + Schema;
    type Result: Serialize + DeserializeOwned + Send + Schema + 'static;
}

/// How calls on one connection are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// May overtake and be overtaken.
    Free,
    /// Changes a session: such calls reach that session in the order in which the connection sent them.
    Session,
}

/// Types with a JSON schema, where schemas are compiled in.
#[cfg(feature = "schema")]
pub trait Schema: schemars::JsonSchema {}
#[cfg(feature = "schema")]
impl<T: schemars::JsonSchema> Schema for T {}
#[cfg(not(feature = "schema"))]
pub trait Schema {}
#[cfg(not(feature = "schema"))]
impl<T> Schema for T {}

/// Something to do for every method of the list.
pub trait Visitor {
    fn method<M: Method>(&mut self);
}

macro_rules! methods {
    ($($(#[doc = $doc:literal])+ $name:literal $ty:ident($params:ty) -> $result:ty, $order:ident;)*) => {
        $(
            $(#[doc = $doc])+
            #[derive(Clone, Copy, Debug)]
            pub struct $ty;

            impl Method for $ty {
                const NAME: &'static str = $name;
                const DOC: &'static str = concat!($($doc),+);
                const ORDER: Order = Order::$order;
                type Params = $params;
                type Result = $result;
            }
        )*

        /// Calls the visitor for each method, in the order of the contract.
        pub fn visit_methods(visitor: &mut impl Visitor) {
            $(visitor.method::<$ty>();)*
        }

        /// How calls of a method stand to others, by its name; none for an unknown method.
        pub fn order_of(method: &str) -> Option<Order> {
            match method {
                $($name => Some(<$ty as Method>::ORDER),)*
                _ => None,
            }
        }
    };
}

methods! {
    /// Says that the daemon lives, and which one it is.
    "ping" Ping(NoParams) -> PingResult, Free;
    /// Tells who calls and what this daemon can do; every method works without it.
    "initialize" Initialize(InitializeParams) -> InitializeResult, Free;
    /// The daemon's vital signs.
    "getStatus" GetStatus(NoParams) -> StatusResult, Free;
    /// This document.
    "rpc.discover" Discover(NoParams) -> serde_json::Value, Free;
    /// The models, whether each is usable, and if not, why.
    "listModels" ListModels(NoParams) -> ListModelsResult, Free;
    /// Prompt templates and skills.
    "listCommands" ListCommands(ListCommandsParams) -> ListCommandsResult, Free;
    /// Whether a work directory's own configuration, skills and commands are used.
    "trustWorkDir" TrustWorkDir(TrustWorkDirParams) -> Empty, Free;
    /// Reads the configuration again; the last good one stays when it has a fault.
    "reloadConfig" ReloadConfig(NoParams) -> ReloadConfigResult, Free;
    /// Stops the daemon.
    "shutdown" Shutdown(ShutdownParams) -> Empty, Free;

    /// Makes a session; its file comes with its first entry.
    "createSession" CreateSession(CreateSessionParams) -> SessionInfo, Session;
    /// Opens the session last used in a directory; null when there is none.
    "continueSession" ContinueSession(ContinueSessionParams) -> Option<SessionInfo>, Session;
    /// Opens a session by id, or a file where it lies.
    "openSession" OpenSession(OpenSessionParams) -> SessionInfo, Session;
    /// Sessions, newest first.
    "listSessions" ListSessions(ListSessionsParams) -> ListSessionsResult, Free;
    /// Which session forked from which.
    "getForest" GetForest(GetForestParams) -> GetForestResult, Free;
    /// The state of one session.
    "getSession" GetSession(SessionParams) -> SessionState, Session;
    /// Names a session; an empty name clears it.
    "setSessionName" SetSessionName(SetSessionNameParams) -> SessionInfo, Session;
    /// Takes a session out of the ordinary lists, or back into them.
    "archiveSession" ArchiveSession(ArchiveSessionParams) -> SessionInfo, Session;
    /// Deletes a session, by its whole id; what forks need of it is kept.
    "deleteSession" DeleteSession(SessionParams) -> Empty, Session;
    /// Finds literal text in prompts, replies, tool arguments and results, summaries and labels.
    "search" Search(SearchParams) -> SearchResult, Free;
    /// Takes in a session of another program (or of kli) as a new session.
    "importSession" ImportSession(ImportSessionParams) -> SessionInfo, Free;
    /// Writes a session for another program or a person.
    "exportSession" ExportSession(ExportSessionParams) -> ExportSessionResult, Session;

    /// The tree, flat and in pages, from the newest nodes back.
    "getTree" GetTree(GetTreeParams) -> GetTreeResult, Session;
    /// Entries by id, or all records after one.
    "getEntries" GetEntries(GetEntriesParams) -> EntriesResult, Session;
    /// The branch that ends at an entry (default: the leaf), root to leaf, newest page first.
    "getBranch" GetBranch(GetBranchParams) -> EntriesResult, Session;
    /// Exactly what the next request would send.
    "getContext" GetContext(GetContextParams) -> GetContextResult, Session;
    /// Moves the leaf.
    "navigateTree" NavigateTree(NavigateTreeParams) -> NavigateTreeResult, Session;
    /// Makes a new session whose branch ends at or before an entry.
    "fork" Fork(ForkParams) -> ForkResult, Session;
    /// Makes a new session with the same branch.
    "clone" CloneSession(CloneParams) -> CloneResult, Session;
    /// Makes a new session that ends before a prompt of the branch.
    "rewind" Rewind(RewindParams) -> RewindResult, Session;
    /// The prompts of the branch, newest first.
    "getForkMessages" GetForkMessages(PageParams) -> GetForkMessagesResult, Session;
    /// A person's name for an entry; null clears it.
    "setLabel" SetLabel(SetLabelParams) -> SetLabelResult, Session;
    /// Replaces older history by a summary in what the model sees.
    "compact" Compact(CompactParams) -> CompactResult, Session;
    /// Appends an extension's data (`custom`) or message (`custom_message`).
    "appendEntry" AppendEntry(AppendEntryParams) -> EntryIdResult, Session;

    /// Starts a run, or queues the text for the one that goes on.
    "prompt" Prompt(PromptParams) -> PromptResult, Session;
    /// `prompt` with `behavior: steer`: enters at the next turn boundary.
    "steer" Steer(PromptParams) -> PromptResult, Session;
    /// `prompt` with `behavior: followUp`: enters when the run would end.
    "followUp" FollowUp(PromptParams) -> PromptResult, Session;
    /// Waits for a run to end; null when there never was one.
    "waitRun" WaitRun(WaitRunParams) -> Option<PromptResult>, Session;
    /// Takes back what is queued.
    "clearQueue" ClearQueue(SessionParams) -> Queue, Session;
    /// Ends whatever goes on in a session.
    "abort" Abort(AbortParams) -> AbortResult, Session;
    /// Goes on after an error, an abort or a crash, without a new prompt.
    "continueRun" ContinueRun(ContinueRunParams) -> PromptResult, Session;
    /// The model from the next request on.
    "setModel" SetModel(SetModelParams) -> EntryIdResult, Session;
    /// An option of the model, such as `reasoning-effort`.
    "setOption" SetOption(SetOptionParams) -> EntryIdResult, Session;
    /// Which tool calls need a person.
    "setMode" SetMode(SetModeParams) -> Empty, Session;
    /// Runs a person's command in the session.
    "bash" Bash(BashParams) -> BashResult, Session;
    /// Background commands of a session.
    "listJobs" ListJobs(SessionParams) -> ListJobsResult, Session;
    /// Ends a background command.
    "killJob" KillJob(KillJobParams) -> Empty, Session;
    /// Answers a tool call that waits for a person; the first answer counts.
    "respondToApproval" RespondToApproval(RespondToApprovalParams) -> Empty, Session;
    /// Counts and costs of a session.
    "getStats" GetStats(SessionParams) -> GetStatsResult, Session;
    /// Answers a call of a tool that this client registered.
    "submitToolResult" SubmitToolResult(SubmitToolResultParams) -> Empty, Free;
    /// Offers tools that this client runs: a subscription, whose notifications are `toolCall`.
    "registerTools" RegisterTools(RegisterToolsParams) -> u64, Free;
    /// Ends such a subscription: true if it was one.
    "unregisterTools" UnregisterTools(UnsubscribeParams) -> bool, Free;
    /// Events of one session or of all: a subscription, whose notifications are `sessionEvent`.
    "subscribe" Subscribe(SubscribeParams) -> u64, Session;
    /// Ends a subscription: true if it was one.
    "unsubscribe" Unsubscribe(UnsubscribeParams) -> bool, Free;
}
