#!/bin/sh
# The script that `release_check.py services` runs on a booted machine: installs the services, runs work through them,
# replaces and kills the agent under it, and removes everything. WHEEL, WHEELS: the wheel and the folder of what it needs.
set -eu
wheel=$1 wheels=$2 deploy=$3
say() { printf '    %s\n' "$*"; }
until_true() { # SECONDS WHAT COMMAND…
    deadline=$(($(date +%s) + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        if [ "$(date +%s)" -ge "$deadline" ]; then
            echo "waited in vain for $what" >&2
            systemctl status --no-pager 'holdfast-*' >&2 || true
            exit 1
        fi
        sleep 0.1
    done
}
client() { HOLDFAST_HOME=/var/lib/holdfast holdfast "$@"; }

PATH="/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
export PATH PIP_FIND_LINKS="$wheels"
install_it() { sh "$deploy/install.sh" --wheel "$wheel" --no-index --python /usr/bin/python3 --service orchestrator --service node; }
install_it >/dev/null
until_true 60 "the orchestrator" client nodes
say "$(holdfast version); the orchestrator runs as $(stat -c %U "/proc/$(systemctl show -P MainPID holdfast-orchestrator)")"

token=$(client token new 2>/dev/null)
printf 'ORCHESTRATOR_ADDRESS=127.0.0.1:7421\nHOLDFAST_TOKEN=%s\nHOLDFAST_NODE_NAME=this\nPNODE_PORT=7430\n' "$token" >/etc/holdfast/node.env
systemctl enable --quiet --now holdfast-node
here() { client nodes --json | grep -q '"connected": *true'; }
until_true 60 "the node" here
if cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -q 'hf1[_]'; then
    echo "the token stands among arguments" >&2
    exit 1
fi

job=$(client run --detach --no-folder -- sh -c 'echo begun; until [ -e release ]; do sleep 0.1; done; echo finished' | tail -n 1)
work=/var/lib/holdfast-node/attempts/att_${job#job_}.1
begun() { client logs "$job" | grep -q begun; }
until_true 60 "the job to run" begun
shim() { sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' "$work/shim.json"; }
first=$(shim)

agent=$(systemctl show -P MainPID holdfast-node)
install_it >/dev/null # an upgrade: the agent is reloaded
replaced() { new=$(systemctl show -P MainPID holdfast-node); [ "$new" != 0 ] && [ "$new" != "$agent" ]; }
until_true 30 "another agent" replaced
until_true 60 "the node to be back" here
[ -d "/proc/$first" ] || { echo "the job's shim did not survive the upgrade" >&2; exit 1; }
say "upgraded under a running job: agent $agent became $new, shim $first lives"

agent=$new
kill -9 "$agent"
until_true 30 "systemd to start it again" replaced
until_true 60 "the node to be back" here
[ -d "/proc/$first" ] || { echo "the job's shim did not survive the agent's death" >&2; exit 1; }
systemctl kill --signal KILL holdfast-orchestrator
until_true 60 "the orchestrator to be back" client nodes
say "agent and orchestrator were killed with kill -9 and came back by themselves"

(cd "$work" && cd work && touch release) # through this machine's mounts: all agents share its scratch
ended() { client job show "$job" --json | grep -q '"verdict": *"succeeded"'; }
until_true 60 "the job to end" ended
client job show "$job" --json | grep -q '"attempts_made": *1\b' || { echo "it was started again" >&2; exit 1; }
say "the job ended well, in its first attempt"

systemctl stop holdfast-node
sh "$deploy/install.sh" --uninstall --purge >/dev/null
[ ! -e /opt/holdfast ] && [ ! -e /etc/holdfast ] && [ ! -e /var/lib/private/holdfast ] && ! systemctl cat holdfast-node >/dev/null 2>&1
say "stopped and taken away, with nothing left"
