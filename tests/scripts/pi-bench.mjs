// Run by pi-bench beside this file: times of pi's own SessionManager on one session file, which is copied first.
import { copyFileSync, mkdtempSync, realpathSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [place, source] = process.argv.slice(2);
const pi = join(place, "node_modules/@earendil-works/pi-coding-agent");
const { SessionManager } = await import(pathToFileURL(join(pi, "dist/index.js")));
const root = realpathSync(mkdtempSync(join(tmpdir(), "kli-pi-")));
process.on("exit", () => rmSync(root, { recursive: true, force: true }));
const file = join(root, "session.jsonl");
copyFileSync(source, file);

const times = {};
function time(name, act) {
  const start = performance.now();
  const result = act();
  times[name] = performance.now() - start;
  return result;
}
const manager = time("open", () => SessionManager.open(file));
const resident = process.memoryUsage().rss / 1e6;
const leaf = manager.getLeafId();
const early = manager.getBranch()[3]?.id;
time("tree", () => manager.getTree());
time("context", () => manager.buildSessionContext());
time("navigate", () => manager.branch(early));
manager.branch(leaf);
time("append", () => manager.appendMessage({ role: "user", content: "a few words", timestamp: Date.now() }));
const fork = time("fork", () => manager.createBranchedSession(leaf));
const show = ([name, ms]) => `${name} ${ms < 1 ? `${(ms * 1000).toFixed(0)} µs` : `${ms.toFixed(1)} ms`}`;
console.log(`pi 1.6.0, ${manager.getEntryCount?.() ?? ""} entries, ${(statSync(source).size / 1e6).toFixed(0)} MB: ` +
  `${Object.entries(times).map(show).join(", ")}; a fork's file ${(statSync(fork).size / 1e6).toFixed(1)} MB; ` +
  `${resident.toFixed(0)} MB resident after opening`);
process.exit(0);
