#!/usr/bin/env python3
"""Asks a model in this directory and prints its answer as it comes: python3 ask.py 'What is in this directory?'

Standard library only. When the connection drops, a new one asks for the events `after` the last one that was seen,
so nothing is missed; a prompt whose reply was lost is sent again with its `idempotencyKey` and is not run twice.
"""

import itertools
import json
import os
import socket
import sys
import time
import uuid
from collections import deque


def socket_path():
    if path := os.environ.get("KLI_SOCKET"):
        return path
    if directory := os.environ.get("XDG_RUNTIME_DIR"):
        return os.path.join(directory, "kli", "kli.sock")
    return os.path.expanduser("~/.local/state/kli/kli.sock")


class RpcError(Exception):
    """The daemon's answer to a call that failed: `code`, `message`, `data.kind`."""


class Connection:
    """One connection: calls, and the events that come between their replies."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(socket_path())
        self.lines = self.socket.makefile("rb")
        self.ids = itertools.count(1)
        self.events = deque()

    def call(self, method, **params):
        call_id = next(self.ids)
        call = {"jsonrpc": "2.0", "id": call_id, "method": method, "params": params}
        self.socket.sendall(json.dumps(call).encode() + b"\n")
        while True:
            message = self.read()
            if "method" in message:
                self.events.append(message)
            elif message["id"] == call_id:
                if "error" in message:
                    raise RpcError(message["error"])
                return message["result"]

    def event(self):
        """The next event; waits for it."""
        message = self.events.popleft() if self.events else self.read()
        return message["params"]["result"]

    def read(self):
        line = self.lines.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("the daemon closed the connection")
        return json.loads(line)


def reconnect(patience=10):
    deadline = time.monotonic() + patience
    while True:
        try:
            return Connection()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def ask(text):
    """Yields the pieces of the answer; returns how the run ended."""
    connection = Connection()
    session = connection.call("createSession", workDir=os.getcwd())["sessionId"]
    key = str(uuid.uuid4())
    asked, last = False, None
    while True:
        try:
            again = asked
            after = {} if last is None else {"after": last}
            connection.call("subscribe", sessionId=session, **after)
            if not asked:
                # Nobody is here to be asked: calls that need a person are refused, and the answer says so.
                connection.call("prompt", sessionId=session, text=text, idempotencyKey=key, approvals="deny")
                asked = True
            while True:
                event = connection.event()
                last = event["seq"]
                if event["type"] == "textDelta":
                    yield event["delta"]
                elif event["type"] == "runEnd":
                    return event["stopReason"]
                elif event["type"] == "snapshot" and again and event["session"]["status"] == "idle":
                    # Too much was missed to be told again, or the daemon is another one: ask how it ended.
                    return connection.call("waitRun", sessionId=session)["stopReason"]
        except ConnectionError as error:
            print(f"\n[{error}; going on after event {last}]", file=sys.stderr)
            connection = reconnect()


def main():
    if len(sys.argv) != 2:
        sys.exit("what to ask, in quotes: python3 ask.py 'What is in this directory?'")
    answer = ask(sys.argv[1])
    while True:
        try:
            sys.stdout.write(next(answer))
            sys.stdout.flush()
        except StopIteration as end:
            print()
            sys.exit(0 if end.value == "done" else f"the run ended with {end.value}")
        except RpcError as error:
            sys.exit(f"the daemon says: {error.args[0]['message']}")
        except OSError as error:
            sys.exit(f"no daemon answers at {socket_path()} ({error.strerror or error}): kli daemon start")


if __name__ == "__main__":
    main()
