#!/usr/bin/env bash
# Installs missing Debian packages: everything that the tests need; with --to-run only what a node needs; with
# --to-release also what a release check needs.
# Without root or apt-get it prints what to install. With CI=true a missing package is an error: nothing is skipped.
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
    command -v runc >/dev/null || missing+=(runc)              # Podman's container runtime here
    [ -x /usr/libexec/podman/catatonit ] || missing+=(catatonit)           # the first process in Podman's containers
    command -v docker-registry >/dev/null || missing+=(docker-registry)    # images to pull in tests
    command -v busybox >/dev/null || missing+=(busybox-static)             # a whole system for images in tests
    command -v curl >/dev/null || missing+=(curl)              # used in pages of the documentation
    [ -x /bin/kill ] || missing+=(procps)                      # used by the reload of a unit
    command -v shellcheck >/dev/null || missing+=(shellcheck)  # checks the shipped scripts
    command -v systemd-analyze >/dev/null || missing+=(systemd)            # checks the shipped units
fi
if [ "${1:-}" = "--to-release" ]; then
    command -v debootstrap >/dev/null || missing+=(debootstrap)            # makes a bare machine
    docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null || missing+=(docker-compose)
fi
[ "${#missing[@]}" -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    # The package lists on a fresh image are empty or stale; where they are current, an update may be impossible.
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
