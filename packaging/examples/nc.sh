#!/bin/sh
# Asks a model in this directory and prints the events of the run, a line of JSON each:
#   sh nc.sh 'What is in this directory?' | jq -r 'select(.params.result.type == "textDelta").params.result.delta'
set -eu
socket=${KLI_SOCKET:-${XDG_RUNTIME_DIR:-$HOME/.local/state}/kli/kli.sock}
text=${1:?what to ask, in quotes}
[ -S "$socket" ] || {
    echo "nc.sh: no daemon runs at $socket: kli daemon start" >&2
    exit 1
}

# A text as JSON, quotes and all.
json() { printf '%s' "$1" | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/	/\\t/g' -e '$!s/$/\\n/' | tr -d '\n' | sed 's/.*/"&"/'; }

pipes=$(mktemp -d)
mkfifo "$pipes/in" "$pipes/out"
nc -U "$socket" <"$pipes/in" >"$pipes/out" &
nc=$!
trap 'kill "$nc" 2>/dev/null || true; rm -r "$pipes"' EXIT
exec 3>"$pipes/in" 4<"$pipes/out"

call() { printf '{"jsonrpc":"2.0","id":1,"method":"%s","params":%s}\n' "$1" "$2" >&3; }

# Calls that name one session are carried out in the order in which they are sent.
session=nc-$(date +%s)-$$
call createSession "{\"workDir\":$(json "$PWD"),\"sessionId\":\"$session\"}"
call subscribe "{\"sessionId\":\"$session\"}"
# Nobody is here to be asked: calls that need a person are refused, and the answer says so.
call prompt "{\"sessionId\":\"$session\",\"text\":$(json "$text"),\"approvals\":\"deny\"}"

while IFS= read -r line <&4; do
    printf '%s\n' "$line"
    case $line in
    *'"type":"runEnd"'*) exit 0 ;;
    '{"jsonrpc":"2.0","id":1,"error"'*) exit 1 ;;
    esac
done
echo "nc.sh: the daemon closed the connection" >&2
exit 1
