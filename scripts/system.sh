#!/usr/bin/env bash
# Installs the Debian packages that are missing: all that the tests need; with --to-run what a node needs at least, with
# --to-release also what checks a release.
# Without root or apt-get it says what to install. With CI=true a missing one ends the run: nothing is skipped.
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin"

missing=()
command -v bwrap >/dev/null || missing+=(bubblewrap)       # confines jobs
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if [ "${1:-}" != "--to-run" ]; then
    command -v iptables >/dev/null || missing+=(iptables)      # cuts links in fault tests
    command -v ip >/dev/null || missing+=(iproute2)            # network namespaces in fault tests
    command -v slirp4netns >/dev/null || missing+=(slirp4netns)            # a network of its own for a job that may use one
    command -v mkfs.ext4 >/dev/null || missing+=(e2fsprogs)    # scratch that cannot be exceeded
    ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1 || missing+=(faketime)  # clocks that jump, in tests
    command -v g++ >/dev/null || missing+=(g++)                # runs the code for CUDA devices without one, in tests
    command -v git >/dev/null || missing+=(git)                # applies mutants
    command -v dockerd >/dev/null || missing+=(docker.io)      # runs jobs in containers
    command -v podman >/dev/null || missing+=(podman)          # the same, another engine
    command -v runc >/dev/null || missing+=(runc)              # what Podman runs containers with here
    [ -x /usr/libexec/podman/catatonit ] || missing+=(catatonit)           # the first process in Podman's containers
    command -v docker-registry >/dev/null || missing+=(docker-registry)    # images to pull in tests
    command -v busybox >/dev/null || missing+=(busybox-static)             # a whole system for images in tests
    command -v curl >/dev/null || missing+=(curl)              # what pages of the documentation type
    [ -x /bin/kill ] || missing+=(procps)                      # what a unit's reload calls
    command -v shellcheck >/dev/null || missing+=(shellcheck)  # reads the scripts that are shipped
    command -v systemd-analyze >/dev/null || missing+=(systemd)            # reads the units that are shipped
fi
if [ "${1:-}" = "--to-release" ]; then
    command -v debootstrap >/dev/null || missing+=(debootstrap)            # a machine that has nothing
    docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null || missing+=(docker-compose)
fi
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
