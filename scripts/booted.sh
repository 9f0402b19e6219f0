#!/usr/bin/env bash
# Boots systemd on a throwaway copy of this machine and runs a script there, to test units by running them.
#
#   scripts/booted.sh SCRIPT [WORD…]
#
# The copy is an overlay in memory; processes, mounts, host name, network (loopback only) and control groups are its own.
# It sees no process and no group of this machine, and everything it writes is discarded. Needs root.
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin"
script=$(realpath "$1"); shift
[ "$(id -u)" -eq 0 ] || { echo "this needs root: it boots a system" >&2; exit 77; }
[ -x /lib/systemd/systemd ] || { echo "systemd is not installed: apt-get install systemd" >&2; exit 77; }

place=$(mktemp -d "${TMPDIR:-/tmp}/holdfast-booted.XXXXXX")
group=$(basename "$place")
clean() {
    if [ -s "$place/pid" ]; then kill -9 "$(cat "$place/pid")" 2>/dev/null || true; fi
    wait || true
    for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*/; do
        if [ -d "${hierarchy%/}/$group" ]; then find "${hierarchy%/}/$group" -depth -type d -exec rmdir {} \; || true; fi
    done
    rm -rf --one-file-system "$place"
}
trap clean EXIT
mkdir "$place/memory" "$place/root"

cat >"$place/join" <<'JOIN'
set -eu
# Its own control groups first: systemd then sees as the root of each hierarchy a group below this machine's.
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*/; do
    hierarchy=${hierarchy%/}
    case $hierarchy in */cpuset) continue ;; esac
    if [ -e "$hierarchy/cgroup.procs" ]; then
        mkdir "$hierarchy/$(basename "$1")"
        echo $$ >"$hierarchy/$(basename "$1")/cgroup.procs"
    fi
done
exec unshare --mount --pid --uts --ipc --net --cgroup --fork --kill-child sh "$1/enter" "$@"
JOIN

cat >"$place/enter" <<'ENTER'
set -eu
place=$1
mount --make-rprivate /
ip link set lo up
hostname booted
mount -t tmpfs memory "$place/memory"
mkdir "$place/memory/upper" "$place/memory/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$place/memory/upper,workdir=$place/memory/work" "$place/root"
cd "$place/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
else
    mount -t tmpfs -o mode=755 cgroup sys/fs/cgroup
    for hierarchy in /sys/fs/cgroup/*/; do
        name=$(basename "$hierarchy")
        case $name in
            cpuset) continue ;;
            unified) mkdir sys/fs/cgroup/unified && mount -t cgroup2 cgroup2 sys/fs/cgroup/unified ;;
            systemd) mkdir sys/fs/cgroup/systemd && mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd ;;
            *) mkdir "sys/fs/cgroup/$name" && mount -t cgroup -o "$name" cgroup "sys/fs/cgroup/$name" ;;
        esac
    done
fi
mount --rbind /dev dev
mount -t tmpfs -o mode=755 run run
mkdir -p .outside
# No unit of this machine may start.
rm -rf etc/systemd/system/*.wants etc/systemd/system/*.service
for unit in tmp.mount systemd-tmpfiles-setup.service; do # or files in /tmp would be hidden or deleted
    ln -sf /dev/null "etc/systemd/system/$unit"
done
printf '[Unit]\nDescription=nothing yet\nDefaultDependencies=no\nAllowIsolate=yes\n' >etc/systemd/system/booted.target
pivot_root . .outside
cd /
umount -l /.outside
container=other exec /lib/systemd/systemd --system --unit=booted.target --log-target=console --show-status=no
ENTER

sh "$place/join" "$place" >"$place/log" 2>&1 &
outer=$!
for _ in $(seq 300); do
    inner=$(pgrep -P "$outer" | head -n 1 || true)
    if [ -n "${inner:-}" ] && [ "$(nsenter -t "$inner" -m -p -- systemctl is-system-running 2>/dev/null)" = running ]; then
        echo "$inner" >"$place/pid"
        break
    fi
    kill -0 "$outer" 2>/dev/null || { cat "$place/log" >&2; echo "it did not boot" >&2; exit 1; }
    sleep 0.1
done
[ -s "$place/pid" ] || { cat "$place/log" >&2; echo "it did not boot in time" >&2; exit 1; }
nsenter -t "$(cat "$place/pid")" --all -- sh "$script" "$@" </dev/null
