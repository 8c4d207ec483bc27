// Run by pi-compat beside this file: opens session files with pi's own SessionManager and with pi itself.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, realpathSync, rmSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [place, option] = process.argv.slice(2);
const pi = join(place, "node_modules/@earendil-works/pi-coding-agent");
const { version } = JSON.parse(readFileSync(join(pi, "package.json"), "utf8"));
assert.equal(version, "1.6.0");
const { SessionManager } = await import(pathToFileURL(join(pi, "dist/index.js")));

const root = realpathSync(mkdtempSync(join(tmpdir(), "kli-pi-")));
const workDir = join(root, "work");
mkdirSync(workDir);
writeFileSync(join(workDir, "hello.txt"), "marker-4711\n");
let daemon;
process.on("exit", () => { daemon?.kill("SIGKILL"); rmSync(root, { recursive: true, force: true }); });

const marks = new Set(["custom", "label", "session_info", "usage", "context_edit", "leaf"]);
const textOf = (content) => (typeof content === "string" ? content : content.map((block) => block.text ?? "").join(""));

// pi's own process, as an editor would run it: its state and messages, then it is let go.
async function ask(file) {
  const child = spawn("pi", ["--mode", "rpc", "--offline", "--no-extensions", "--no-skills", "--session", file], {
    cwd: workDir, env: { PATH: process.env.PATH, HOME: join(root, "pi-home"), PI_OFFLINE: "1" },
    stdio: ["pipe", "pipe", "pipe"],
  });
  let out = "", err = "";
  child.stdout.setEncoding("utf8");
  child.stderr.on("data", (bytes) => (err += bytes));
  const ended = new Promise((resolve) => child.on("close", resolve));
  const replies = new Promise((resolve) => {
    child.stdout.on("data", (bytes) => {
      out += bytes;
      if (out.split("\n").filter((line) => line.includes('"type":"response"')).length >= 2) resolve();
    });
    child.on("close", resolve);
  });
  child.stdin.write('{"id":"1","type":"get_state"}\n{"id":"2","type":"get_messages"}\n');
  const timer = setTimeout(() => child.kill("SIGKILL"), 60_000);
  await replies;
  child.stdin.end();
  child.kill("SIGTERM");
  const code = await ended;
  clearTimeout(timer);
  const responses = out.split("\n").filter(Boolean).map((line) => JSON.parse(line)).filter((m) => m.type === "response");
  return { code, err, state: responses.find((r) => r.id === "1")?.data, messages: responses.find((r) => r.id === "2")?.data?.messages };
}

// A file that pi must open: the branch by ids (marks passed over), and what it would send.
async function opens(name, file, branch, said) {
  const before = readFileSync(file);
  const manager = SessionManager.open(file);
  const ids = manager.getBranch().filter((entry) => !marks.has(entry.type)).map((entry) => entry.id);
  assert.deepEqual(ids, branch, `${name}: the branch`);
  const sent = manager.buildSessionContext().messages.map((m) => m.role === "user" || m.role === "assistant" ? textOf(m.content) : m.role);
  for (const [text, present] of said) {
    assert.equal(sent.some((t) => t.includes(text)), present, `${name}: ${text} in ${JSON.stringify(sent)}`);
  }
  assert.ok(before.equals(readFileSync(file)), `${name}: SessionManager wrote to it`);
  const seen = await ask(file);
  assert.ok(seen.messages, `${name}: pi did not answer: ${seen.err}`);
  assert.equal(seen.messages.length, manager.buildSessionContext().messages.length, `${name}: pi's own messages`);
  assert.ok(before.equals(readFileSync(file)), `${name}: opening it in pi appended ${readFileSync(file).subarray(before.length)}`);
  console.log(`ok    ${name}: ${ids.length} entries on the branch`);
}

// A file that pi must refuse, and leave as it is.
async function refuses(name, file) {
  const before = readFileSync(file);
  assert.throws(() => SessionManager.open(file), /not a valid/, `${name}: SessionManager`);
  const seen = await ask(file);
  assert.ok(!seen.messages && seen.code !== 0, `${name}: pi opened it`);
  assert.ok(before.equals(readFileSync(file)), `${name}: it was written to`);
  console.log(`ok    ${name}: refused, untouched`);
}

// Files of the format, by hand: as session-format says that they are.
async function byHand() {
  const time = (n) => `2026-01-01T00:00:${String(n).padStart(2, "0")}.000Z`;
  const cost = { input: 0, output: 0, cacheRead: 0, cacheWrite: 0, total: 0 };
  const usage = { input: 1, output: 1, cacheRead: 0, cacheWrite: 0, totalTokens: 2, cost };
  let n = 0;
  const record = (type, id, parentId, fields = {}) => ({ type, id, parentId, timestamp: time(++n), ...fields });
  const user = (id, parentId, text) => record("message", id, parentId, { message: { role: "user", content: text, timestamp: 1767225600000 } });
  const bot = (id, parentId, text) => record("message", id, parentId, { message: { role: "assistant", content: [{ type: "text", text }],
    api: "openai-completions", provider: "demo", model: "offline", usage, stopReason: "stop", timestamp: 1767225600000 } });
  const write = (name, records) => {
    const file = join(root, name);
    writeFileSync(file, records.map((r) => JSON.stringify(r) + "\n").join(""));
    return file;
  };
  const header = (id) => ({ type: "session", version: 3, id, timestamp: time(0), cwd: workDir });
  const opening = [record("model_change", "00000001", null, { provider: "demo", modelId: "offline" }),
    record("thinking_level_change", "00000002", "00000001", { thinkingLevel: "off" })];
  const talk = [user("00000003", "00000002", "question A"), bot("00000004", "00000003", "answer A"),
    user("00000005", "00000004", "question B"), bot("00000006", "00000005", "answer B")];
  const ids = (upTo) => Array.from({ length: upTo }, (_, i) => String(i + 1).padStart(8, "0"));

  await opens("by hand", write("plain.jsonl", [header("plain"), ...opening, ...talk]), ids(6), [["answer B", true]]);
  const moved = [...talk, record("leaf", "00000007", "00000004")];
  await opens("by hand, leaf moved", write("moved.jsonl", [header("moved"), ...opening, ...moved]), ids(4), [["answer A", true], ["question B", false]]);
  const option = record("option_change", "00000003", "00000002", { optionId: "x", value: 1 });
  const rest = talk.map((r) => ({ ...r, id: String(Number(r.id) + 1).padStart(8, "0"), parentId: String(Number(r.parentId) + 1).padStart(8, "0") }));
  await opens("by hand, with an option", write("option.jsonl", [header("option"), ...opening, option, ...rest]), ids(7), [["answer B", true]]);
  const fork = { type: "kli_session", version: 4, id: "fork", timestamp: time(0), cwd: workDir, parentSession: "plain",
    base: { session: "plain", entry: "00000004", at: 1234 } };
  await refuses("by hand, a fork", write("fork.jsonl", [fork]));
  await refuses("by hand, a fork with entries", write("fork2.jsonl", [{ ...fork, id: "fork2" }, user("00000009", "00000004", "in the fork")]));
}

// A newline-framed client of the daemon.
function client(socket) {
  return new Promise((resolve, reject) => {
    const stream = connect(socket, () => resolve({ call, end: () => stream.end() }));
    stream.on("error", reject);
    stream.setEncoding("utf8");
    let buffer = "", next = 0;
    const waiting = new Map();
    stream.on("data", (bytes) => {
      buffer += bytes;
      for (let at; (at = buffer.indexOf("\n")) >= 0; buffer = buffer.slice(at + 1)) {
        const message = JSON.parse(buffer.slice(0, at));
        waiting.get(message.id)?.(message);
        waiting.delete(message.id);
      }
    });
    async function call(method, params = {}) {
      const id = ++next;
      const reply = new Promise((done) => waiting.set(id, done));
      stream.write(JSON.stringify({ jsonrpc: "2.0", id, method, params }) + "\n");
      const { result, error } = await reply;
      assert.ok(!error, `${method}: ${JSON.stringify(error)}`);
      return result;
    }
  });
}

// What the real daemon writes.
async function byDaemon() {
  const socket = join(root, "s"), home = join(root, "home");
  mkdirSync(home);
  const start = () => spawn(join(process.env.KLI_BIN_DIR, "kli-daemon"),
    ["--foreground", "--socket", socket, "--session-dir", join(root, "sessions")],
    { env: { PATH: process.env.PATH, HOME: home, XDG_RUNTIME_DIR: root, KLI_SOCKET: socket }, stdio: ["ignore", "ignore", "inherit"] });
  daemon = start();
  let c;
  for (let tries = 0; !c; tries++) {
    assert.ok(tries < 500 && daemon.exitCode === null, "the daemon did not come up");
    c = await client(socket).catch(() => new Promise((again) => setTimeout(again, 20)));
  }
  const { sessionId } = await c.call("createSession", { workDir });
  const prompt = (text, id = sessionId) => c.call("prompt", { sessionId: id, text, wait: true, approvals: "deny" });
  const branch = async (id = sessionId) => (await c.call("getBranch", { sessionId: id })).entries.map((entry) => entry.id);
  const path = async (id = sessionId) => (await c.call("getSession", { sessionId: id })).path;
  await prompt("read hello.txt");
  await prompt("question B");
  const file = await path();
  await opens("kli", file, await branch(), [["question B", true], ["read hello.txt", true]]);
  const { messages } = await c.call("getForkMessages", { sessionId });
  await c.call("setLabel", { sessionId, entryId: messages[0].entryId, label: "here" });
  await c.call("setSessionName", { sessionId, name: "a name" });
  await opens("kli, with a label and a name", file, await branch(), [["question B", true]]);
  assert.equal(SessionManager.open(file).getSessionName(), "a name");
  assert.equal(SessionManager.open(file).getLabel(messages[0].entryId), "here");
  const { session } = await c.call("fork", { sessionId, entryId: messages[0].entryId });
  await c.call("navigateTree", { sessionId, entryId: messages[0].entryId });
  await opens("kli, leaf moved", file, await branch(), [["question B", false], ["read hello.txt", true]]);
  await prompt("question B, edited");
  await opens("kli, a second branch", file, await branch(), [["question B, edited", true]]);
  await refuses("kli, a fork", await path(session.sessionId));
  await prompt("in the fork", session.sessionId);
  await refuses("kli, a fork with entries", await path(session.sessionId));

  // And the other way: pi appends, and kli takes its lines in.
  const manager = SessionManager.open(file);
  const added = manager.appendMessage({ role: "user", content: "written by pi", timestamp: Date.now() });
  await prompt("after pi");
  const { nodes } = await c.call("getTree", { sessionId });
  assert.ok(nodes.some((node) => node.id === added), "what pi appended is in the tree");
  const lines = readFileSync(file, "utf8").trimEnd().split("\n").map((line) => JSON.parse(line));
  assert.ok(lines.some((line) => line.id === added) && lines.some((line) => JSON.stringify(line).includes('"after pi"')));
  assert.ok(!readdirSync(workDir).some((name) => name.endsWith(".jsonl")));
  console.log("ok    pi appends to a file that kli has open: nothing is lost on either side");
  c.end();
  daemon.kill("SIGTERM");
}

await byHand();
if (option !== "--format-only") await byDaemon();
process.exit(0);
