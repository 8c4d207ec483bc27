// Asks a model in this directory and prints its answer as it comes:
//   npm install vscode-jsonrpc && node ask.js 'What is in this directory?'
// The client is the one that VS Code speaks to language servers with, unchanged.
"use strict";
const net = require("node:net");
const os = require("node:os");
const path = require("node:path");
const rpc = require("vscode-jsonrpc/node");

const directory = process.env.XDG_RUNTIME_DIR || path.join(os.homedir(), ".local/state");
const socket = net.createConnection(process.env.KLI_SOCKET || path.join(directory, "kli", "kli.sock"));
socket.on("error", (error) => fail(error.message));

const connection = rpc.createMessageConnection(
  new rpc.SocketMessageReader(socket),
  new rpc.SocketMessageWriter(socket),
);

const ended = new Promise((resolve) => {
  connection.onNotification("sessionEvent", ({ result: event }) => {
    if (event.type === "textDelta") process.stdout.write(event.delta);
    if (event.type === "runEnd") resolve(event.stopReason);
  });
  connection.onClose(() => resolve("a closed connection"));
});
connection.listen();

async function main(text) {
  const { sessionId } = await connection.sendRequest("createSession", { workDir: process.cwd() });
  // Subscribed before the prompt is sent, so that nothing of the answer is missed.
  await connection.sendRequest("subscribe", { sessionId });
  // Nobody is here to be asked: calls that need a person are refused, and the answer says so.
  await connection.sendRequest("prompt", { sessionId, text, approvals: "deny" });
  const stopReason = await ended;
  process.stdout.write("\n");
  if (stopReason !== "done") fail(`the run ended with ${stopReason}`);
  // To close only our half would leave the subscription going.
  socket.destroy();
}

function fail(message) {
  console.error(message);
  process.exit(1);
}

main(process.argv[2]).catch((error) => fail(error.message));
