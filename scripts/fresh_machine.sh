#!/usr/bin/env bash
# Runs the README's commands on a bare machine: Debian 12, made by debootstrap, in its own namespaces (processes, mounts,
# host name, message queues), with the committed tree copied in.
#
#   scripts/fresh_machine.sh                what the README prints: make demo, then make test
#   scripts/fresh_machine.sh "make demo"    only this
#   scripts/fresh_machine.sh --list         what it would run
#
# The bare system is kept as a tarball in .cache/ for the next run. It uses this machine's network and this
# machine's settings for package sources (pip's settings and certificates), read at run time: a mirror is not a
# property of the product. Needs root, debootstrap and kernel namespaces. Nothing is left behind.
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin"

here=$(cd "$(dirname "$0")/.." && pwd)
suite=bookworm
cache=${HOLDFAST_FRESH_CACHE:-$here/.cache}
bare=$cache/$suite.tar
commit=${HOLDFAST_FRESH_COMMIT:-HEAD}

say() { printf '\033[1m%s\033[0m\n' "fresh machine: $*"; }

if [ $# -eq 0 ] || [ "$1" = --list ]; then
    # As printed: the first block of commands in the README.
    mapfile -t commands < <(sed -n '/^## Two commands/,/^## /p' "$here/README.md" | sed -n 's/^\(make [a-z]*\).*/\1/p')
else
    commands=("$@")
fi
[ "${#commands[@]}" -gt 0 ] || { echo "README.md prints no commands under 'Two commands'" >&2; exit 1; }
if [ "${1:-}" = --list ]; then printf '%s\n' "${commands[@]}"; exit 0; fi
[ "$(id -u)" -eq 0 ] || { echo "this needs root: it makes a system and enters it" >&2; exit 77; }

if [ ! -s "$bare" ]; then
    command -v debootstrap >/dev/null || { apt-get update -qq; apt-get install -y -qq debootstrap >/dev/null; }
    say "making a bare $suite (once)"
    mkdir -p "$cache"
    raw=$(mktemp -d "${TMPDIR:-/var/tmp}/holdfast-bare.XXXXXX")
    trap 'rm -rf "$raw"' EXIT
    debootstrap --variant=minbase "$suite" "$raw" >"$cache/debootstrap.log" 2>&1 ||
        { tail -n 20 "$cache/debootstrap.log" >&2; exit 1; }
    rm -rf "$raw"/var/cache/apt/archives/*.deb
    chmod 755 "$raw"  # it becomes /, which everybody may enter; temporary folders are private
    tar -C "$raw" --one-file-system -c . >"$bare.new" && mv "$bare.new" "$bare"
    rm -rf "$raw"
    trap - EXIT
fi

root=$(mktemp -d "${TMPDIR:-/var/tmp}/holdfast-fresh.XXXXXX")
# Its mounts are in a namespace that has ended by then, so nothing of this machine can be mounted below.
trap 'rm -rf --one-file-system "$root"' EXIT
tar -C "$root" -x <"$bare"
chmod 755 "$root"

say "copying ${commit} into it"
mkdir -p "$root/srv/holdfast"
if [ -d "$here/.git" ] || [ -f "$here/.git" ]; then
    git -c advice.detachedHead=false clone --quiet --no-hardlinks "$here" "$root/srv/holdfast"
    git -C "$root/srv/holdfast" checkout --quiet --detach "$(git -C "$here" rev-parse "$commit")"
    git -C "$root/srv/holdfast" remote remove origin
else
    tar -C "$here" --exclude=./.venv --exclude=./.cache -c . | tar -C "$root/srv/holdfast" -x
fi

# --- this machine's settings for package sources, which are outside of the tree ---
cp -L /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
cp -L /etc/hosts "$root/etc/hosts"
echo fresh >"$root/etc/hostname"
bundle=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
mkdir -p "$root/fresh"
if [ -r "$bundle" ]; then cp -L "$bundle" "$root/fresh/certificates.crt"; fi
places=()
if command -v pip >/dev/null; then
    pip config list 2>/dev/null | sed -n "s/^global\.\([a-z-]*\)='\(.*\)'$/\1 = \2/p" | grep -v '^cert ' >"$root/fresh/pip" || true
    { echo "[global]"; cat "$root/fresh/pip"; } >"$root/etc/pip.conf"
    # Folders of wheels, and indexes in folders: the files of an index are beside its pages.
    mapfile -t places < <(tr ' ' '\n' <"$root/fresh/pip" |
        sed -n -e 's/^\(\/.*\)$/\1/p' -e 's/^file:\/\/\(\/.*\)\/[^/]*$/\1/p' | sort -u)
fi
for place in "${places[@]}"; do
    if [ -e "$place" ]; then mkdir -p "$root$place" && printf '%s\n' "$place" >>"$root/fresh/places"; fi
done

# --- the commands ---
cat >"$root/fresh/type" <<'TYPED'
set -eu
export DEBIAN_FRONTEND=noninteractive HOME=/srv LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
if [ -s /fresh/certificates.crt ]; then
    export PIP_CERT=/fresh/certificates.crt SSL_CERT_FILE=/fresh/certificates.crt REQUESTS_CA_BUNDLE=/fresh/certificates.crt
fi
hostname fresh
echo "$(. /etc/os-release && echo "$PRETTY_NAME"), $(dpkg-query -f '.\n' -W | wc -l) packages, process $$ of its own namespace"
apt-get update -qq
# "Both need Linux, make and Python 3.11 or newer": a machine's owner brings these two.
apt-get install -y -qq --no-install-recommends make python3 >/fresh/apt.log 2>&1 || { cat /fresh/apt.log; exit 1; }
cd /srv/holdfast
for command in "$@"; do
    echo "\$ $command"
    begun=$(date +%s)
    sh -c "$command"
    echo "[$command: well, in $(( $(date +%s) - begun )) s]"
done
TYPED

cat >"$root/fresh/enter" <<'ENTER'
set -eu
root=$1; shift
mount --make-rprivate /
mount --bind "$root" "$root"
cd "$root"
mkdir -p proc sys dev tmp run .outside
mount -t proc proc proc
mount -t sysfs sysfs sys
if [ -d /sys/fs/cgroup ]; then mount --rbind /sys/fs/cgroup sys/fs/cgroup; fi
mount -t tmpfs -o mode=755 dev dev
for node in null zero full random urandom tty kmsg fuse loop-control net/tun kvm; do
    if [ -e "/dev/$node" ]; then mkdir -p "dev/$(dirname "$node")"; touch "dev/$node"; mount --bind "/dev/$node" "dev/$node"; fi
done
# Loop devices are created on demand, but their device nodes must exist beforehand.
for number in $(seq 0 63); do mknod -m 660 "dev/loop$number" b 7 "$number"; done
mkdir -p dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr
mount -t tmpfs -o mode=1777 shm dev/shm
mount -t tmpfs -o mode=755 run run
if [ -s fresh/places ]; then
    while read -r place; do mount --bind -o ro "$place" ".$place"; done <fresh/places
fi
pivot_root . .outside
cd /
umount -l /.outside
exec sh /fresh/type "$@"
ENTER

say "entering it: ${commands[*]}"
unshare --mount --pid --uts --ipc --fork --kill-child -- sh "$root/fresh/enter" "$root" "${commands[@]}" </dev/null
say "all of it went well"
