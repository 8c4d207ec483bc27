// Generated from the types of kli-protocol. UPDATE=1 cargo test -p kli-daemon openrpc rewrites it.
export type PingResult = {
  version: string;
  protocolVersion: number;
  pid: number;
};
export type InitializeResult = {
  version: string;
  protocolVersion: number;
  capabilities: unknown;
  /** What every bound is, by its name. */
  limits: Record<string, number>;
  sessionDir?: string;
};
export type StatusResult = {
  pid: number;
  version: string;
  uptimeMs: number;
  socket: string;
  sessionDir?: string;
  sessions: SessionCounts;
  connections: number;
  /** Resident memory of the daemon. */
  memoryBytes: number;
};
export type SessionCounts = {
  open: number;
  running: number;
  memoryOnly: number;
};
export type ListModelsResult = {
  models: Array<ModelInfo>;
  default: ModelRef;
};
export type ModelInfo = {
  provider: string;
  modelId: string;
  name: string;
  /** Tokens. */
  contextWindow: number;
  /** Tokens. */
  maxOutput: number;
  reasoning: boolean;
  /** `text`, `image` */
  input: Array<string>;
  cost: ModelCost;
  options: Array<ModelOption>;
  available: boolean;
  /** Why it is not available. */
  reason?: string;
};
/** US dollars per million tokens. */
export type ModelCost = {
  input: number;
  output: number;
  cacheRead: number;
  cacheWrite: number;
};
export type ModelOption = {
  optionId: string;
  values: Array<string>;
  default: string;
};
export type ModelRef = {
  provider: string;
  modelId: string;
};
export type ListCommandsResult = {
  commands: Array<CommandInfo>;
};
export type CommandInfo = {
  name: string;
  description: string;
  source: string;
  argumentHint?: string;
  path?: string;
};
/** The result `{}`. */
export type Empty = Record<string, unknown>;
export type ReloadConfigResult = {
  /** The keys whose value is another now. */
  changed: Array<string>;
};
export type SessionInfo = {
  sessionId: string;
  workDir: string;
  /** The name, else the first prompt cut at 50 characters, else `Untitled`. */
  title: string;
  name?: string;
  /** The first prompt that is the session's own and not its base's. */
  forkPrompt?: string;
  lastPrompt?: string;
  /** RFC 3339, UTC, ms. */
  createdAt: string;
  /** When the last record was written. */
  updatedAt: string;
  /** Nodes of the tree, the shared prefix included. */
  entryCount?: number;
  /** User and assistant messages. */
  messageCount?: number;
  parentSession?: string;
  /** The last shared entry. */
  forkEntryId?: string;
  persisted: boolean;
  path?: string;
  archived: boolean;
  readOnly: boolean;
  status: Status;
  warnings: Array<Warning>;
};
export type Status = "idle" | "running" | "retrying" | "waitingForApproval" | "compacting" | "summarizing";
/** Something that a person should know of a session's file. */
export type Warning = {
  kind: string;
  message: string;
  path?: string;
  /** Bytes from the start of the file. */
  offset?: number;
};
export type ListSessionsResult = {
  sessions: Array<SessionInfo>;
  /** Files that look like sessions and could not be read; on the first page. */
  unreadable: Array<Unreadable>;
  nextCursor?: string;
};
export type Unreadable = {
  path: string;
  reason: string;
};
export type GetForestResult = {
  roots: Array<string>;
  nodes: Array<ForestNode>;
  nextCursor?: string;
};
export type ForestNode = {
  sessionId: string;
  workDir: string;
  /** The name, else the first prompt cut at 50 characters, else `Untitled`. */
  title: string;
  name?: string;
  /** The first prompt that is the session's own and not its base's. */
  forkPrompt?: string;
  lastPrompt?: string;
  /** RFC 3339, UTC, ms. */
  createdAt: string;
  /** When the last record was written. */
  updatedAt: string;
  /** Nodes of the tree, the shared prefix included. */
  entryCount?: number;
  /** User and assistant messages. */
  messageCount?: number;
  parentSession?: string;
  /** The last shared entry. */
  forkEntryId?: string;
  persisted: boolean;
  path?: string;
  archived: boolean;
  readOnly: boolean;
  status: Status;
  warnings: Array<Warning>;
  /** Ids of the sessions that forked from it. */
  children: Array<string>;
};
export type SessionState = {
  sessionId: string;
  workDir: string;
  /** The name, else the first prompt cut at 50 characters, else `Untitled`. */
  title: string;
  name?: string;
  /** The first prompt that is the session's own and not its base's. */
  forkPrompt?: string;
  lastPrompt?: string;
  /** RFC 3339, UTC, ms. */
  createdAt: string;
  /** When the last record was written. */
  updatedAt: string;
  /** Nodes of the tree, the shared prefix included. */
  entryCount?: number;
  /** User and assistant messages. */
  messageCount?: number;
  parentSession?: string;
  /** The last shared entry. */
  forkEntryId?: string;
  persisted: boolean;
  path?: string;
  archived: boolean;
  readOnly: boolean;
  status: Status;
  warnings: Array<Warning>;
  /** Null: before the first entry. */
  leafId: string | null;
  provider: string;
  modelId: string;
  options: Record<string, unknown>;
  mode: Mode;
  trusted: boolean;
  /** What of the directory's own configuration would count, were it trusted; absent once a person has said whether it is. */
  untrusted?: Array<string>;
  /** A crash cut a run off, and `continueRun` takes it up. */
  interrupted: boolean;
  queue: Queue;
  pendingApprovals: Array<Approval>;
  usage: Usage;
  context: ContextUse;
};
/** Which tool calls need a person. */
export type Mode = "ask" | "auto" | "plan";
/** What waits to be said to the model. */
export type Queue = {
  steer: Array<Queued>;
  followUp: Array<Queued>;
};
export type Queued = {
  text: string;
  images?: Array<Image>;
};
/** A picture for a prompt: its bytes, or (in parameters only) a file. */
export type Image = {
  /** Base64. */
  data?: string;
  mimeType?: string;
  path?: string;
};
/** A tool call that waits for a person. */
export type Approval = {
  approvalId: string;
  toolCallId: string;
  toolName: string;
  title: string;
  arguments: Record<string, unknown>;
  /** Why a person is asked. */
  reason: string;
  /** What `allowForSession` would allow from then on. Absent: the very same call only. */
  rule?: string;
  /** The edit before it is made. */
  changes?: Array<Change>;
};
export type Change = {
  path: string;
  line?: number;
  /** Null: a new file. */
  oldText: string | null;
  newText: string;
};
/** Tokens and their price. */
export type Usage = {
  input: number;
  output: number;
  cacheRead: number;
  cacheWrite: number;
  totalTokens: number;
  cost: Cost;
};
/** US dollars. */
export type Cost = {
  input: number;
  output: number;
  cacheRead: number;
  cacheWrite: number;
  total: number;
};
/** How full the model's window is. */
export type ContextUse = {
  tokens: number;
  window: number;
  percent: number;
};
export type SearchResult = {
  hits: Array<SearchHit>;
  nextCursor?: string;
};
export type SearchHit = {
  sessionId: string;
  /** For a label: the entry that has it. */
  entryId: string;
  type: string;
  role?: string;
  /** One line around the hit. */
  preview: string;
  timestamp: string;
  /** Whether the entry lies on the branch of the leaf. */
  onBranch: boolean;
};
export type ExportSessionResult = {
  path?: string;
  content?: string;
};
export type GetTreeResult = {
  leafId: string | null;
  roots: Array<string>;
  /** In file order; the newest are on the first page. */
  nodes: Array<TreeNode>;
  nextCursor?: string;
};
export type TreeNode = {
  id: string;
  /** The nearest node shown above it, marks passed over. */
  parentId: string | null;
  type: string;
  role?: string;
  toolName?: string;
  /** One line, at most 200 characters. */
  preview: string;
  label?: string;
  timestamp: string;
  /** An estimate. */
  tokens: number;
  /** In file order, at most 1,000. */
  children: Array<string>;
  childCount: number;
  onBranch: boolean;
  /** A folded run ends here. */
  lastId?: string;
  /** Nodes of the folded run. */
  count?: number;
};
export type EntriesResult = {
  entries: Array<Entry>;
  nextCursor?: string;
};
/** A record as it lies in the session file (session-format.md), or, above 1 MiB, {type, id, parentId, timestamp, preview, bytes}. */
export type Entry = {
  type: string;
  id: string;
  parentId?: string | null;
  timestamp?: string;
};
export type GetContextResult = {
  systemPrompt: string;
  tools: Array<ToolDescription>;
  /** In the file's shape, after repair; summaries are user messages. */
  messages: Array<Message>;
  provider: string;
  modelId: string;
  options: Record<string, unknown>;
  /** An estimate of the whole request. */
  tokens: number;
  nextCursor?: string;
};
/** A tool as the model is told of it. */
export type ToolDescription = {
  name: string;
  description: string;
  /** A JSON schema of an object. */
  parameters: unknown;
};
/** One message of a conversation. */
export type Message = UserMessage & {
  role: "user";
} | AssistantMessage & {
  role: "assistant";
} | ToolResultMessage & {
  role: "toolResult";
} | BashExecution & {
  role: "bashExecution";
} | {
  role: "unknown";
};
/** The content of a message: text, or blocks. Null and missing are no blocks. */
export type Content = string | Array<Block>;
/** One block of content. */
export type Block = TextBlock & {
  type: "text";
} | ImageBlock & {
  type: "image";
} | ThinkingBlock & {
  type: "thinking";
} | ToolCallBlock & {
  type: "toolCall";
} | unknown;
export type TextBlock = {
  text: string;
  textSignature?: string;
};
export type ImageBlock = {
  /** Base64. */
  data: string;
  mimeType: string;
};
export type ThinkingBlock = {
  thinking: string;
  /** What the provider wants back, byte for byte. */
  thinkingSignature?: string;
  /** The provider hid the text; the signature holds it. */
  redacted?: boolean;
};
export type ToolCallBlock = {
  id: string;
  name: string;
  arguments: Record<string, unknown>;
  thoughtSignature?: string;
};
export type UserMessage = {
  content: Content;
  /** What the person typed, when `content` is its expansion. */
  typed?: string;
  /** Unix ms. */
  timestamp: number;
};
/** Why a model stopped, as stored with its message. */
export type StopReason = "stop" | "toolUse" | "error" | "aborted" | "length";
export type AssistantMessage = {
  content: Content;
  /** The wire format that it came over, such as `openai-chat`. */
  api: string;
  provider: string;
  model: string;
  usage: Usage;
  stopReason: StopReason;
  errorMessage?: string;
  /** Unix ms. */
  timestamp: number;
};
export type ToolResultMessage = {
  toolCallId: string;
  toolName: string;
  content: Content;
  details?: unknown;
  isError: boolean;
  /** Unix ms. */
  timestamp: number;
};
export type BashExecution = {
  command: string;
  output: string;
  exitCode: number | null;
  cancelled: boolean;
  truncated: boolean;
  fullOutputPath?: string;
  excludeFromContext?: boolean;
  /** Unix ms. */
  timestamp: number;
};
export type NavigateTreeResult = {
  leafId: string | null;
  /** Where the leaf was. */
  fromId: string | null;
  /** The prompt that was navigated to, to be edited. */
  editorText?: string;
  images?: Array<Image>;
  summaryEntryId?: string;
};
export type ForkResult = {
  session: SessionInfo;
  /** The prompt before which it was forked. */
  text?: string;
  images?: Array<Image>;
};
export type CloneResult = {
  session: SessionInfo;
};
export type RewindResult = {
  session: SessionInfo;
  text: string;
  images?: Array<Image>;
};
export type GetForkMessagesResult = {
  messages: Array<ForkMessage>;
  nextCursor?: string;
};
export type ForkMessage = {
  entryId: string;
  text: string;
  timestamp: string;
};
export type SetLabelResult = {
  previous?: string;
};
export type CompactResult = {
  entryId: string;
  summary: string;
  firstKeptEntryId: string;
  tokensBefore: number;
  tokensAfter: number;
};
export type EntryIdResult = {
  entryId: string;
};
/** The reply of `prompt` and its kin; the second half once the run has ended, with `wait`. */
export type PromptResult = {
  runId: string;
  queued: boolean;
  entryId?: string;
  stopReason?: RunStop;
  /** The text of the last assistant message. */
  text?: string;
  leafId?: string;
  error?: RunError;
  usage?: Usage;
};
/** Why a run ended. */
export type RunStop = "done" | "length" | "refused" | "aborted" | "error" | "maxTurns";
export type RunError = {
  kind: RunErrorKind;
  message: string;
  retryable: boolean;
};
export type RunErrorKind = "noApiKey" | "auth" | "quota" | "rateLimited" | "overloaded" | "network" | "timeout" | "contextOverflow" | "badRequest" | "storeFailed" | "interrupted" | "internal";
export type AbortResult = {
  aborted: boolean;
};
export type BashResult = {
  entryId: string;
  output: string;
  exitCode?: number;
  cancelled: boolean;
  truncated: boolean;
  fullOutputPath?: string;
};
export type ListJobsResult = {
  jobs: Array<Job>;
};
/** A background command. */
export type Job = {
  jobId: string;
  command: string;
  status: JobStatus;
  exitCode?: number;
  /** The end of what it printed. */
  output: string;
};
export type JobStatus = "running" | "exited" | "killed";
export type GetStatsResult = {
  userMessages: number;
  assistantMessages: number;
  toolCalls: number;
  toolResults: number;
  /** Of the session's own entries, all branches. */
  usage: Usage;
  models: Array<ModelUsage>;
  context: ContextUse;
};
export type ModelUsage = {
  provider: string;
  modelId: string;
  usage: Usage;
};
/** What a run has brought so far that is no entry yet. */
export type RunSnapshot = {
  runId: string;
  messageId?: string;
  /** Each block at its index. A tool call that is still being written has `arguments` `{}` and its JSON text so far in `partialArguments`. */
  content: Array<Block>;
  tools: Array<ToolSnapshot>;
};
export type ToolSnapshot = {
  toolCallId: string;
  toolName: string;
  title: string;
  arguments: Record<string, unknown>;
  output: string;
};
/** A place that a tool call touches. */
export type Location = {
  path: string;
  line?: number;
};
export type CompactionReason = "manual" | "threshold" | "overflow" | "branch";
/** One event: `result` of a `sessionEvent` notification. */
export type Event = {
  /** Rises with each event of a session, is never given twice. Absent: from the daemon itself, or news of a session that is not open. */
  seq?: number;
  sessionId?: string;
  /** RFC 3339, UTC, ms. */
  time: string;
  /** The run that it belongs to. */
  runId?: string;
} & ({
  type: "snapshot";
  session: SessionState;
  run?: RunSnapshot;
} | {
  type: "runStart";
  entryId?: string;
} | {
  type: "runEnd";
  stopReason: RunStop;
  error?: RunError;
  usage: Usage;
} | {
  type: "turnStart";
} | {
  type: "turnEnd";
  usage: Usage;
  context: ContextUse;
} | {
  type: "messageStart";
  messageId: string;
} | {
  type: "messageEnd";
  messageId: string;
  /** False: dropped, a retry follows. */
  stored: boolean;
} | {
  type: "textDelta";
  messageId: string;
  index: number;
  delta: string;
} | {
  type: "thinkingDelta";
  messageId: string;
  index: number;
  delta: string;
} | {
  type: "toolCallDelta";
  messageId: string;
  index: number;
  toolCallId: string;
  toolName: string;
  /** JSON text. */
  delta: string;
} | {
  type: "toolStart";
  toolCallId: string;
  toolName: string;
  title: string;
  arguments: Record<string, unknown>;
  locations: Array<Location>;
} | {
  type: "toolUpdate";
  toolCallId: string;
  delta: string;
} | {
  type: "toolEnd";
  toolCallId: string;
  isError: boolean;
  content: Content;
  details?: unknown;
} | {
  type: "approvalRequested";
  approval: Approval;
} | {
  type: "approvalResolved";
  approvalId: string;
  /** `allow`, `allowForSession`, `deny` or `aborted`. */
  decision: string;
  message?: string;
  by?: string;
} | {
  type: "entryAppended";
  entry: Entry;
} | {
  type: "leafMoved";
  leafId: string | null;
  fromId: string | null;
} | {
  type: "labelChanged";
  entryId: string;
  label: string | null;
} | {
  type: "queueChanged";
  queue: Queue;
} | {
  type: "compactionStart";
  reason: CompactionReason;
} | {
  type: "compactionEnd";
  entryId?: string;
  error?: RunError;
} | {
  type: "retryScheduled";
  attempt: number;
  maxAttempts: number;
  delayMs: number;
  reason: string;
} | {
  type: "modelChanged";
  provider: string;
  modelId: string;
} | {
  type: "optionChanged";
  optionId: string;
  value: unknown;
} | {
  type: "modeChanged";
  mode: Mode;
} | {
  type: "sessionCreated";
  session: SessionInfo;
} | {
  type: "sessionInfoChanged";
  session: SessionInfo;
} | {
  type: "sessionDeleted";
} | {
  type: "lagged";
} | {
  type: "warning";
  kind: string;
  message: string;
});
/** A `toolCall` notification: a call, or the end of one that is no longer wanted. */
export type ClientToolCall = {
  callId: string;
  sessionId?: string;
  toolCallId?: string;
  name?: string;
  arguments?: Record<string, unknown>;
  cancelled?: boolean;
};
/** Who calls; other clients see the name beside what it decided. */
export type ClientInfo = {
  name: string;
  version: string;
};
export type ImportFormat = "auto" | "kli" | "pi" | "kimi" | "codex" | "claude";
export type ExportFormat = "jsonl" | "pi" | "markdown" | "html";
/** Which nodes a tree shows. */
export type TreeView = "all" | "messages" | "prompts" | "labelled" | "branches";
/** Where a branch ends, seen from an entry. */
export type Position = "before" | "at";
export type TextBlockParam = {
  text?: string;
  textSignature?: string;
};
export type ImageBlockParam = {
  /** Base64. */
  data?: string;
  mimeType?: string;
};
export type ThinkingBlockParam = {
  thinking?: string;
  /** What the provider wants back, byte for byte. */
  thinkingSignature?: string;
  /** The provider hid the text; the signature holds it. */
  redacted?: boolean;
};
export type ToolCallBlockParam = {
  id?: string;
  name?: string;
  arguments?: Record<string, unknown>;
  thoughtSignature?: string;
};
/** Where a text goes while a run goes on. */
export type Behavior = "steer" | "followUp";
/** What becomes of a tool call that needs a person. */
export type Approvals = "wait" | "deny";
export type Decision = "allow" | "allowForSession" | "deny";
/** A tool that a client runs. */
export type ClientTool = {
  name: string;
  description: string;
  /** A JSON schema of an object. */
  parameters: unknown;
  /** Changes nothing, so it needs no approval. */
  readOnly?: boolean;
};

/** Every method: its parameters by name, and its result. */
export interface Methods {
  /** Says that the daemon lives, and which one it is. */
  "ping": { params: { }; result: PingResult };
  /** Tells who calls and what this daemon can do; every method works without it. */
  "initialize": { params: { clientInfo: ClientInfo; protocolVersion?: number | null; }; result: InitializeResult };
  /** The daemon's vital signs. */
  "getStatus": { params: { }; result: StatusResult };
  /** This document. */
  "rpc.discover": { params: { }; result: unknown };
  /** The models, whether each is usable, and if not, why. */
  "listModels": { params: { }; result: ListModelsResult };
  /** Prompt templates and skills. */
  "listCommands": { params: { sessionId?: string | null; workDir?: string | null; }; result: ListCommandsResult };
  /** Whether a work directory's own configuration, skills and commands are used. */
  "trustWorkDir": { params: { workDir: string; trusted: boolean; }; result: Empty };
  /** Reads the configuration again; the last good one stays when it has a fault. */
  "reloadConfig": { params: { }; result: ReloadConfigResult };
  /** Stops the daemon. */
  "shutdown": { params: { force?: boolean | null; whenIdle?: boolean | null; }; result: Empty };
  /** Makes a session; its file comes with its first entry. */
  "createSession": { params: { workDir: string; sessionId?: string | null; provider?: string | null; modelId?: string | null; options?: Record<string, unknown> | null; mode?: Mode | null; name?: string | null; persist?: boolean | null; env?: Record<string, string> | null; mcpServers?: unknown; }; result: SessionInfo };
  /** Opens the session last used in a directory; null when there is none. */
  "continueSession": { params: { workDir: string; create?: boolean | null; }; result: SessionInfo | null };
  /** Opens a session by id, or a file where it lies. */
  "openSession": { params: { sessionId?: string | null; path?: string | null; rebind?: string | null; env?: Record<string, string> | null; mcpServers?: unknown; }; result: SessionInfo };
  /** Sessions, newest first. */
  "listSessions": { params: { workDir?: string | null; archived?: boolean | null; status?: Status | null; query?: string | null; limit?: number | null; cursor?: string | null; }; result: ListSessionsResult };
  /** Which session forked from which. */
  "getForest": { params: { workDir?: string | null; archived?: boolean | null; limit?: number | null; cursor?: string | null; }; result: GetForestResult };
  /** The state of one session. */
  "getSession": { params: { sessionId: string; }; result: SessionState };
  /** Names a session; an empty name clears it. */
  "setSessionName": { params: { sessionId: string; name: string; }; result: SessionInfo };
  /** Takes a session out of the ordinary lists, or back into them. */
  "archiveSession": { params: { sessionId: string; archived: boolean; }; result: SessionInfo };
  /** Deletes a session, by its whole id; what forks need of it is kept. */
  "deleteSession": { params: { sessionId: string; }; result: Empty };
  /** Finds literal text in prompts, replies, tool arguments and results, summaries and labels. */
  "search": { params: { query: string; sessionId?: string | null; workDir?: string | null; archived?: boolean | null; limit?: number | null; cursor?: string | null; }; result: SearchResult };
  /** Takes in a session of another program (or of kli) as a new session. */
  "importSession": { params: { path: string; format?: ImportFormat | null; workDir?: string | null; sessionId?: string | null; name?: string | null; }; result: SessionInfo };
  /** Writes a session for another program or a person. */
  "exportSession": { params: { sessionId: string; format: ExportFormat; path?: string | null; leafId?: string | null; }; result: ExportSessionResult };
  /** The tree, flat and in pages, from the newest nodes back. */
  "getTree": { params: { sessionId: string; view?: TreeView | null; rootId?: string | null; lastId?: string | null; limit?: number | null; cursor?: string | null; }; result: GetTreeResult };
  /** Entries by id, or all records after one. */
  "getEntries": { params: { sessionId: string; ids?: Array<string> | null; after?: string | null; limit?: number | null; cursor?: string | null; }; result: EntriesResult };
  /** The branch that ends at an entry (default: the leaf), root to leaf, newest page first. */
  "getBranch": { params: { sessionId: string; leafId?: string | null; after?: string | null; limit?: number | null; cursor?: string | null; }; result: EntriesResult };
  /** Exactly what the next request would send. */
  "getContext": { params: { sessionId: string; leafId?: string | null; limit?: number | null; cursor?: string | null; }; result: GetContextResult };
  /** Moves the leaf. */
  "navigateTree": { params: { sessionId: string; entryId: string | null; summarize?: boolean | null; instructions?: string | null; label?: string | null; position?: Position | null; leafId?: string | null; }; result: NavigateTreeResult };
  /** Makes a new session whose branch ends at or before an entry. */
  "fork": { params: { sessionId: string; entryId: string; position?: Position | null; newSessionId?: string | null; name?: string | null; workDir?: string | null; }; result: ForkResult };
  /** Makes a new session with the same branch. */
  "clone": { params: { sessionId: string; newSessionId?: string | null; name?: string | null; workDir?: string | null; }; result: CloneResult };
  /** Makes a new session that ends before a prompt of the branch. */
  "rewind": { params: { sessionId: string; entryId?: string | null; newSessionId?: string | null; name?: string | null; workDir?: string | null; }; result: RewindResult };
  /** The prompts of the branch, newest first. */
  "getForkMessages": { params: { sessionId: string; limit?: number | null; cursor?: string | null; }; result: GetForkMessagesResult };
  /** A person's name for an entry; null clears it. */
  "setLabel": { params: { sessionId: string; entryId: string; label: string | null; }; result: SetLabelResult };
  /** Replaces older history by a summary in what the model sees. */
  "compact": { params: { sessionId: string; instructions?: string | null; leafId?: string | null; }; result: CompactResult };
  /** Appends an extension's data (`custom`) or message (`custom_message`). */
  "appendEntry": { params: { sessionId: string; customType: string; data?: unknown; content?: Content | null; display?: boolean | null; leafId?: string | null; idempotencyKey?: string | null; }; result: EntryIdResult };
  /** Starts a run, or queues the text for the one that goes on. */
  "prompt": { params: { sessionId: string; text: string; images?: Array<Image> | null; behavior?: Behavior | null; wait?: boolean | null; approvals?: Approvals | null; expand?: boolean | null; leafId?: string | null; idempotencyKey?: string | null; provider?: string | null; modelId?: string | null; options?: Record<string, unknown> | null; maxTurns?: number | null; }; result: PromptResult };
  /** `prompt` with `behavior: steer`: enters at the next turn boundary. */
  "steer": { params: { sessionId: string; text: string; images?: Array<Image> | null; behavior?: Behavior | null; wait?: boolean | null; approvals?: Approvals | null; expand?: boolean | null; leafId?: string | null; idempotencyKey?: string | null; provider?: string | null; modelId?: string | null; options?: Record<string, unknown> | null; maxTurns?: number | null; }; result: PromptResult };
  /** `prompt` with `behavior: followUp`: enters when the run would end. */
  "followUp": { params: { sessionId: string; text: string; images?: Array<Image> | null; behavior?: Behavior | null; wait?: boolean | null; approvals?: Approvals | null; expand?: boolean | null; leafId?: string | null; idempotencyKey?: string | null; provider?: string | null; modelId?: string | null; options?: Record<string, unknown> | null; maxTurns?: number | null; }; result: PromptResult };
  /** Waits for a run to end; null when there never was one. */
  "waitRun": { params: { sessionId: string; runId?: string | null; }; result: PromptResult | null };
  /** Takes back what is queued. */
  "clearQueue": { params: { sessionId: string; }; result: Queue };
  /** Ends whatever goes on in a session. */
  "abort": { params: { sessionId: string; runId?: string | null; }; result: AbortResult };
  /** Goes on after an error, an abort or a crash, without a new prompt. */
  "continueRun": { params: { sessionId: string; wait?: boolean | null; }; result: PromptResult };
  /** The model from the next request on. */
  "setModel": { params: { sessionId: string; provider: string; modelId: string; }; result: EntryIdResult };
  /** An option of the model, such as `reasoning-effort`. */
  "setOption": { params: { sessionId: string; optionId: string; value: unknown; }; result: EntryIdResult };
  /** Which tool calls need a person. */
  "setMode": { params: { sessionId: string; mode: Mode; }; result: Empty };
  /** Runs a person's command in the session. */
  "bash": { params: { sessionId: string; command: string; excludeFromContext?: boolean | null; timeoutMs?: number | null; idempotencyKey?: string | null; }; result: BashResult };
  /** Background commands of a session. */
  "listJobs": { params: { sessionId: string; }; result: ListJobsResult };
  /** Ends a background command. */
  "killJob": { params: { sessionId: string; jobId: string; }; result: Empty };
  /** Answers a tool call that waits for a person; the first answer counts. */
  "respondToApproval": { params: { sessionId: string; approvalId: string; decision: Decision; message?: string | null; }; result: Empty };
  /** Counts and costs of a session. */
  "getStats": { params: { sessionId: string; }; result: GetStatsResult };
  /** Answers a call of a tool that this client registered. */
  "submitToolResult": { params: { callId: string; content: Content; isError?: boolean | null; }; result: Empty };
  /** Offers tools that this client runs: a subscription, whose notifications are `toolCall`. */
  "registerTools": { params: { tools: Array<ClientTool>; sessionId?: string | null; }; result: number };
  /** Ends such a subscription: true if it was one. */
  "unregisterTools": { params: { subscription: number; }; result: boolean };
  /** Events of one session or of all: a subscription, whose notifications are `sessionEvent`. */
  "subscribe": { params: { sessionId?: string | null; after?: number | null; types?: Array<string> | null; }; result: number };
  /** Ends a subscription: true if it was one. */
  "unsubscribe": { params: { subscription: number; }; result: boolean };
}

/** Every notification: its parameters. */
export interface Notifications {
  "sessionEvent": {
    subscription: number;
    result: Event;
  };
  "toolCall": {
    subscription: number;
    result: ClientToolCall;
  };
}

/** `data.kind` of the application errors, and their codes. */
export const errorCodes = {
  sessionNotFound: -32020,
  entryNotFound: -32021,
  ambiguous: -32022,
  sessionExists: -32023,
  sessionBusy: -32024,
  sessionReadOnly: -32025,
  sessionCorrupt: -32026,
  leafMoved: -32027,
  workDirNotFound: -32028,
  notTrusted: -32029,
  modelNotFound: -32030,
  noApiKey: -32031,
  nothingToCompact: -32032,
  compactionFailed: -32033,
  storeFailed: -32034,
  invalidEntry: -32035,
  approvalNotFound: -32036,
  callNotFound: -32037,
  fileExists: -32038,
  limitExceeded: -32039,
  needsConnection: -32040,
  aborted: -32041,
  daemonBusy: -32042,
  shuttingDown: -32043,
} as const;
