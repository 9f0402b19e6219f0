#!/bin/sh
# Installs Holdfast into a folder of its own, with a link to its command, and if asked for as a service.
#
#   sh install.sh --wheel FILE                       the command `holdfast`, from this wheel (`make wheel`)
#   sh install.sh --wheel FILE --service node        and a systemd service that offers this machine
#   sh install.sh --wheel FILE --service orchestrator --extras postgres
#   sh install.sh --uninstall                        everything but data and settings; --purge: these as well
#
# Run again to upgrade. Each install is an environment of its own in PREFIX/releases; PREFIX/current leads to the one in
# use and is switched at once, when the new one is whole. What runs from an older one goes on running from it, so the
# one before and those that processes run from are kept. Settings and data stay.
set -eu

prefix=/opt/holdfast
bin=/usr/local/bin
units=/etc/systemd/system
settings=/etc/holdfast
data="/var/lib/holdfast /var/lib/private/holdfast /var/lib/holdfast-node"
wheel=
package=
extras=
services=
python=python3
action=install
purge=no
offline=no

say() { printf '%s\n' "$*"; }
fail() { printf 'install.sh: %s\n' "$1" >&2; [ -z "${2:-}" ] || printf '  %s\n' "$2" >&2; exit 1; }

usage() {
    cat <<'TEXT'
Usage: sh install.sh [OPTIONS]

  --wheel FILE         install this wheel
  --package NAME       or the package of this name, where pip finds packages; NAME==VERSION for one version
  --extras NAMES       extras, with commas: neural, torch, postgres; an upgrade keeps those there are
  --service NAME       also install the systemd service `orchestrator` or `node`; can be given twice
  --prefix DIR         where it is installed            [/opt/holdfast]
  --bin DIR            where the command is linked      [/usr/local/bin]
  --unit-dir DIR       where services are installed     [/etc/systemd/system]
  --settings DIR       where services read settings     [/etc/holdfast]
  --python PROGRAM     Python 3.11 or newer             [python3]
  --no-index           ask no package index: all packages are found by pip's own settings, or are there already
  --uninstall          remove what was installed; data and settings stay
  --purge              with --uninstall: data and settings as well
  --help               show this
TEXT
}

need() { [ $# -ge 2 ] || fail "$1 takes a value" "Try --help."; }

while [ $# -gt 0 ]; do
    case $1 in
        --wheel) need "$@"; wheel=$2; shift ;;
        --package) need "$@"; package=$2; shift ;;
        --extras) need "$@"; extras=$2; shift ;;
        --service) need "$@"; services="$services $2"; shift ;;
        --prefix) need "$@"; prefix=$2; shift ;;
        --bin) need "$@"; bin=$2; shift ;;
        --unit-dir) need "$@"; units=$2; shift ;;
        --settings) need "$@"; settings=$2; shift ;;
        --python) need "$@"; python=$2; shift ;;
        --no-index) offline=yes ;;
        --uninstall) action=uninstall ;;
        --purge) purge=yes ;;
        --help | -h) usage; exit 0 ;;
        *) fail "there is no option $1" "Try --help." ;;
    esac
    shift
done

case $prefix in
    /) fail "the prefix cannot be /" ;;
    /*) ;;
    *) fail "the prefix $prefix is not an absolute path" ;;
esac
for service in $services; do
    case $service in
        orchestrator | node) ;;
        *) fail "there is no service $service" "Choose orchestrator or node." ;;
    esac
done
case $extras in *[!a-z,]*) fail "extras are names with commas between, not $extras" ;; esac

# Whether systemd runs this machine, and the units are those it reads.
runs_systemd() { [ -d /run/systemd/system ] && [ "$units" = /etc/systemd/system ] && command -v systemctl >/dev/null; }

mark="$prefix/.installed-by-holdfast"
releases="$prefix/releases"
current="$prefix/current"

uninstall() {
    for service in orchestrator node; do
        unit="$units/holdfast-$service.service"
        [ -e "$unit" ] || continue
        if runs_systemd; then systemctl disable --quiet --now "holdfast-$service" || true; fi
        rm -f "$unit"
        say "removed $unit"
    done
    if runs_systemd; then systemctl daemon-reload; fi
    if [ -L "$bin/holdfast" ]; then
        case $(readlink "$bin/holdfast") in "$prefix"/*) rm -f "$bin/holdfast" ;; esac
    fi
    if [ -e "$mark" ]; then
        rm -rf "$prefix"
        say "removed $prefix"
    elif [ -e "$prefix" ]; then
        fail "$prefix was not made by this script, and stays" "Remove it yourself if it is to go."
    fi
    if [ "$purge" = yes ]; then
        # Only what this script put there: the folder may be anyone's.
        rm -f "$settings/orchestrator.env" "$settings/node.env"
        if [ -d "$settings" ] && ! rmdir "$settings" 2>/dev/null; then say "$settings holds other files, and stays"; fi
        if [ "$units" = /etc/systemd/system ]; then for folder in $data; do rm -rf "$folder"; done; fi
        say "removed settings and data"
    fi
}

# Makes an environment beside those that are there. Until it is whole nothing leads to it; if it fails it goes again.
build_release() {
    number=$(basename "$(readlink "$current" || echo 0)")
    number=$((number + 1))
    while [ -e "$releases/$number" ]; do number=$((number + 1)); done
    release="$releases/$number"
    trap 'rm -rf "$release"' EXIT
    trap 'exit 130' INT TERM
    "$python" -m venv "$release"
    set -- --quiet --disable-pip-version-check
    [ "$offline" = no ] || set -- "$@" --no-index
    "$release/bin/python" -m pip install "$@" "$what" || fail "pip could not install $what" "What pip said stands above."
    "$release/bin/holdfast" version >/dev/null || fail "what was installed does not run" "What it said stands above."
}

# The one before is kept to go back to, and what processes run from until they end: an agent starts shims from its own
# files, and a shim outlives its agent.
remove_old_releases() {
    for old in "$releases"/*; do
        case releases/${old##*/} in "releases/$number" | "$before") continue ;; esac
        if grep -qsF "$old/" /proc/[0-9]*/cmdline; then continue; fi
        rm -rf "$old"
    done
}

install_program() {
    command -v "$python" >/dev/null || fail "there is no $python on this machine" "Install Python 3.11 or newer, for example: apt-get install python3 python3-venv"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "$python is $("$python" -V 2>&1), and Holdfast needs 3.11 or newer" "Name a newer one with --python."
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$python cannot make virtual environments" "Install them, for example: apt-get install python3-venv"
    if [ -e "$prefix" ] && [ ! -e "$mark" ]; then
        [ -z "$(ls -A "$prefix")" ] || fail "$prefix is there already, and was not made by this script" "Choose another --prefix."
    fi
    if [ -e "$bin/holdfast" ] && [ ! -L "$bin/holdfast" ]; then fail "$bin/holdfast is there already and is no link" "Choose another --bin."; fi
    what=$package
    if [ -n "$wheel" ]; then
        [ -f "$wheel" ] || fail "there is no wheel at $wheel"
        what=$(cd "$(dirname "$wheel")" && pwd)/$(basename "$wheel")
    fi
    [ -n "$what" ] || fail "it is not said what to install" "Give --wheel FILE; \`make wheel\` makes one from a checkout."
    # Those of the release before, or an orchestrator would lose its database's driver with an upgrade.
    if [ -z "$extras" ] && [ -f "$current/extras" ]; then extras=$(cat "$current/extras"); fi
    if [ -n "$extras" ]; then
        case $what in
            *==*) what="${what%%==*}[$extras]==${what#*==}" ;;
            *) what="${what}[$extras]" ;;
        esac
    fi
    mkdir -p "$releases"
    : >"$mark"
    build_release
    printf '%s\n' "$extras" >"$release/extras"
    before=$(readlink "$current" || true)
    rm -f "$current.new"
    ln -s "releases/$number" "$current.new"
    trap - EXIT INT TERM
    mv -fT "$current.new" "$current" # a rename: whoever starts the command meets the old one or the new one
    mkdir -p "$bin"
    ln -sfn "$current/bin/holdfast" "$bin/holdfast"
    remove_old_releases
    say "$("$bin/holdfast" version) in $prefix"
    command -v bwrap >/dev/null || say "bubblewrap is missing: a node needs it to isolate jobs (apt-get install bubblewrap)"
}

# The units and their settings lie beside this script.
beside=$(cd "$(dirname "$0")" && pwd)/systemd

install_service() {
    unit="holdfast-$1.service"
    [ -e "$beside/$unit" ] || fail "$beside/$unit is not there" "Keep install.sh beside its folder systemd/."
    mkdir -p "$units" "$settings"
    sed -e "s#/opt/holdfast/#$prefix/#g" -e "s#/etc/holdfast/#$settings/#g" "$beside/$unit" >"$units/$unit.new"
    chmod 0644 "$units/$unit.new"
    mv "$units/$unit.new" "$units/$unit"
    if [ ! -e "$settings/$1.env" ]; then
        (umask 077 && cp "$beside/$1.env" "$settings/$1.env")
    fi
    chmod 0600 "$settings/$1.env"
    say "installed $units/$unit; its settings: $settings/$1.env"
    runs_systemd || return 0
    systemctl daemon-reload
    if [ "$1" = node ]; then
        if ! grep -q '^ORCHESTRATOR_ADDRESS=.' "$settings/node.env"; then
            say "write ORCHESTRATOR_ADDRESS and HOLDFAST_TOKEN there, then: systemctl enable --now holdfast-node"
            return 0
        fi
    fi
    systemctl enable --quiet "holdfast-$1"
    if systemctl --quiet is-active "holdfast-$1" && [ "$1" = node ]; then
        systemctl reload holdfast-node # the agent is replaced; what it hosts runs on
    else
        systemctl restart "holdfast-$1"
    fi
}

if [ "$action" = uninstall ]; then
    uninstall
    exit 0
fi
install_program
for service in $services; do install_service "$service"; done
