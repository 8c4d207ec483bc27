#!/bin/sh
# Asks a model in this directory and prints its answer: sh curl.sh 'What is in this directory?'
# One POST is a call and its reply; with `wait` the reply comes when the run has ended.
set -eu
socket=${KLI_SOCKET:-${XDG_RUNTIME_DIR:-$HOME/.local/state}/kli/kli.sock}
text=${1:?what to ask, in quotes}
[ -S "$socket" ] || {
    echo "curl.sh: no daemon runs at $socket: kli daemon start" >&2
    exit 1
}

# A text as JSON, quotes and all.
json() { printf '%s' "$1" | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/	/\\t/g' -e '$!s/$/\\n/' | tr -d '\n' | sed 's/.*/"&"/'; }

call() {
    curl -sS --fail-with-body --unix-socket "$socket" http://kli/ \
        -d "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"$1\",\"params\":$2}"
}

# An id of our own saves reading the reply.
session=curl-$(date +%s)-$$
call createSession "{\"workDir\":$(json "$PWD"),\"sessionId\":\"$session\"}" >/dev/null
# Nobody is here to be asked: calls that need a person are refused, and the answer says so.
call prompt "{\"sessionId\":\"$session\",\"text\":$(json "$text"),\"wait\":true,\"approvals\":\"deny\"}"
