#!/usr/bin/env bash
# Installs the Debian packages that the tests and the demo need and that are missing.
# Without root or apt-get it says what to install. With CI=true a missing one ends the run: nothing is skipped.
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin"

missing=()
command -v bwrap >/dev/null || missing+=(bubblewrap)       # confines jobs
command -v iptables >/dev/null || missing+=(iptables)      # cuts links in fault tests
command -v ip >/dev/null || missing+=(iproute2)            # network namespaces in fault tests
command -v git >/dev/null || missing+=(git)                # applies mutants
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
[ "${#missing[@]}" -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    # The lists on a fresh image are empty or stale, but where they are good the update may be impossible.
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null 2>&1 && exit 0
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    exit 0
fi

echo "missing on this machine: ${missing[*]}" >&2
echo "install them, for example: sudo apt-get install ${missing[*]}" >&2
if [ "${CI:-}" = "true" ]; then
    echo "CI=true: what is needed is not skipped, so this run ends here" >&2
    exit 1
fi
echo "going on without them: the tests that need them will fail" >&2
