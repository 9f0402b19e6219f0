"""Disk space with a hard limit: an attempt's folders on a file system of their own, in an image file.

The image's space is reserved on the node's disk when it is created, so that others cannot take it later. It is mounted
through a loop device that frees itself with its last user, so that the kernel cleans up after any crash. Without the
right to mount, or without a loop device, the folders are plain, and their content is measured. Knows no sandbox and no
order.
"""

import contextlib
import errno
import fcntl
import os
import struct
import time
from functools import cache

from holdfast.node import linux
from holdfast.node.runtimes import trials
from holdfast.node.runtimes.hindrances import NONE, NOT_ROOT, Hindrance, Lack, not_installed
from holdfast.passing import briefly, exists, unless_passing

IMAGE = "scratch.img"
_NEW = "scratch.new"
_DISK = "disk"
"""Where the file system is mounted until its folders are bind-mounted to their places."""
MIB = 1 << 20
_USUAL_MIB = 1_024
"""The default for a job."""

_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_CONFIGURE = 0x4C0A
_AUTOCLEAR = 4
_EXT4_SHUTDOWN = 0x8004587D
_WITHOUT_FLUSH = 2
_FORMAT = ("-q", "-F", "-m", "0", "-i", "8192", "-O", "^has_journal,^resize_inode")
"""No journal: after a power cut the content does not count. One inode per two blocks: jobs have many small files."""
_OPTIONS = "noinit_itable"
"""Inode tables are zeroed on use; otherwise each mount would write a part of the disk in the background."""
_TRIES = 20
_PATTERNS_MAX = 32
_PART_BYTES = 64 * 1024
_FULL_BYTES = 256 * 1024
"""A disk with less free space counts as full: nothing of any size could be written."""
_GONE_S = 20.0
"""For the kernel, on a busy machine, to free a device that is no longer used."""


def room_for(mib: int) -> int:
    """Size of an image whose file system has `mib` MiB of space for files, including tables and reserve."""
    return mib * MIB * 107 // 100 + 2 * MIB


def mounts_below(folder: str) -> list[str]:
    """The mount points in this folder and below, the last mount first."""
    inside = os.path.realpath(folder) + "/"
    places = [_plain(words[4]) for words in _mounts()]
    return [place for place in reversed(places) if (place + "/").startswith(inside)]


def _mounts() -> list[list[bytes]]:
    return [line.split(b" ") for line in briefly(_read_mounts).splitlines()]


def _read_mounts() -> bytes:
    with open("/proc/self/mountinfo", "rb") as file:
        return file.read()


def _plain(escaped: bytes) -> str:
    """A path of mountinfo, in which special characters are written as octal numbers."""
    for number in (b"040", b"011", b"012"):
        escaped = escaped.replace(b"\\" + number, bytes([int(number, 8)]))
    return os.fsdecode(escaped.replace(b"\\134", b"\\"))


def loops_below(folder: str) -> list[str]:
    """Loop devices whose image is, or was, in this folder."""
    inside = os.path.realpath(folder) + "/"
    found: list[str] = []
    for name in sorted(briefly(os.listdir, "/sys/block")) if os.path.isdir("/sys/block") else []:
        with unless_passing():
            if name.startswith("loop") and briefly(_read, f"/sys/block/{name}/loop/backing_file").startswith(inside):
                found.append(name)
    return found


def scratch_mounts() -> list[str]:
    """Mount points of the scratch of all attempts on this machine, the last mount first."""
    return [
        _plain(line[4])
        for line in reversed(_mounts())
        if line[line.index(b"-") + 2].startswith(b"/dev/loop")
        and os.path.basename(line[4]) == (os.path.basename(line[3]) or _DISK.encode())
        and os.path.exists(os.path.join(os.path.dirname(_plain(line[4])), IMAGE))
    ]


def devices_below(folder: str) -> tuple[str, ...]:
    """`major:minor` of the loop devices of this folder."""
    return tuple(briefly(_read, f"/sys/block/{name}/dev") for name in loops_below(folder))


def disk_under(folder: str) -> tuple[str, ...]:
    """`major:minor` of the disk that this folder is on; empty if the kernel cannot limit it."""
    device = briefly(os.stat, folder).st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    whole = os.path.realpath(f"/sys/dev/block/{name}")
    if os.path.exists(f"{whole}/partition"):  # limits are for whole disks
        name = briefly(_read, f"{os.path.dirname(whole)}/dev")
    return (name,) if os.path.exists(whole) else ()


def _read(path: str) -> str:
    with open(path) as file:
        return file.read().strip()


@cache
def hindrance() -> Hindrance:
    """Why no image can be mounted on this machine; empty if it can, which is tested. Call it before there are threads
    that mount as well."""
    if os.geteuid() != 0:
        return NOT_ROOT
    if not os.path.exists("/dev/loop-control"):
        return Hindrance("there is no /dev/loop-control", Lack.LOOP)
    if _program() is None:
        return not_installed("mkfs.ext4", "e2fsprogs")
    with trials.folder_for("scratch", detach) as folder:
        try:
            briefly(make, folder, ("work",), 1, 0)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                return Hindrance(f"no file can be mounted: {error.strerror or error}")
    return NONE


def _program() -> str | None:
    places = [f"{folder}/mkfs.ext4" for folder in (*os.get_exec_path(), "/usr/sbin", "/sbin")]
    return next((place for place in places if os.access(place, os.X_OK)), None)


# --- creating ---


def make(folder: str, names: tuple[str, ...], mib: int, uid: int) -> None:
    """Create the folders `names` in `folder`, for user `uid`, with `mib` MiB for all of them together. Idempotent: what
    exists stays. Raises OSError if that fails, ENOSPC if the node's disk has not enough space."""
    folder = os.path.realpath(folder)
    places = {name: os.path.join(folder, name) for name in names}
    image = os.path.join(folder, IMAGE)
    mounted = mounts_below(folder)
    if set(mounted) == set(places.values()):
        return
    if mounted:  # an earlier call was interrupted here: nothing is in it yet
        detach(folder)
        os.unlink(image)
    if not exists(image):
        _format(folder, room_for(mib))
    elif not _is_clean(image):
        raise OSError(errno.EIO, "the machine was not shut down cleanly, and what the job had written is lost")
    for place in places.values():  # after the image: see `is_plain`
        os.makedirs(place, mode=0o700, exist_ok=True)
    disk = os.path.join(folder, _DISK)
    os.makedirs(disk, mode=0o700, exist_ok=True)
    number, device = _attach(image)
    try:
        flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOATIME
        linux.mount(_node(number), disk, "ext4", flags, _OPTIONS)
    finally:
        os.close(device)
    linux.mount("", disk, flags=linux.MS_PRIVATE)
    for name, place in places.items():
        inner = os.path.join(disk, name)
        os.makedirs(inner, mode=0o700, exist_ok=True)
        os.chown(inner, uid, uid)
        linux.mount(inner, place, flags=linux.MS_BIND)
        linux.mount("", place, flags=linux.MS_PRIVATE)
    linux.unmount(disk)
    with contextlib.suppress(OSError):
        os.rmdir(disk)  # removes it from every mount namespace that was copied meanwhile


def _format(folder: str, size: int) -> None:
    """The image is created under another name, so that under its own name it is complete."""
    new = os.path.join(folder, _NEW)
    fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size)
        try:
            linux.reserve(fd, size)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise OSError(error.errno, f"{size // MIB} MiB of scratch cannot be kept free") from None
        for offset, data in _pattern(size):
            os.pwrite(fd, data, offset)
    except OSError:
        os.unlink(new)
        raise
    finally:
        os.close(fd)
    os.rename(new, os.path.join(folder, IMAGE))


_patterns: dict[int, list[tuple[int, bytes]]] = {}
"""The non-zero parts of a new file system, by size: small, and always the same. Running mkfs again would take longer
than the rest of preparing an attempt's folders."""


def _pattern(size: int) -> list[tuple[int, bytes]]:
    if (known := _patterns.get(size)) is not None:
        return known
    draft = os.memfd_create("draft", 0)  # inherited by mkfs
    try:
        os.ftruncate(draft, size)
        words = (*_FORMAT, "-E", "lazy_itable_init=1,nodiscard", f"/proc/self/fd/{draft}")
        _run((_program() or "mkfs.ext4", *words))
        made = _parts(draft)
    finally:
        os.close(draft)
    if len(_patterns) < _PATTERNS_MAX:
        _patterns[size] = made
    return made


def warm() -> None:
    """Create the pattern for the default size now: the first attempt here may be one that another machine has just
    lost, and should not wait for it. Blocking."""
    if not hindrance():
        with contextlib.suppress(OSError):
            _pattern(room_for(_USUAL_MIB))


def _parts(fd: int) -> list[tuple[int, bytes]]:
    """All parts of a file that are not zero, with their offsets."""
    found: list[tuple[int, bytes]] = []
    end = 0
    while True:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # only zeros from here on
                raise
            return found
        end = os.lseek(fd, start, os.SEEK_HOLE)
        for offset in range(start, end, _PART_BYTES):
            data = os.pread(fd, min(_PART_BYTES, end - offset), offset)
            if data.strip(b"\0"):
                found.append((offset, data))


def is_plain(folder: str, names: tuple[str, ...]) -> bool:
    """Whether these folders were created without scratch. They may have content, which scratch would cover."""
    places = [os.path.join(folder, name) for name in names]
    return any(os.path.isdir(place) for place in places) and not exists(os.path.join(folder, IMAGE))


def is_away(folder: str) -> bool:
    """Whether there is scratch that is not mounted: the machine was rebooted since."""
    return exists(os.path.join(folder, IMAGE)) and not mounts_below(folder)


def _is_clean(image: str) -> bool:
    """Whether it was never mounted, or cleanly unmounted, according to its ext4 superblock."""
    with open(image, "rb") as file:
        file.seek(1024 + 58)
        return int.from_bytes(file.read(2), "little") == 1


def _run(argv: tuple[str, ...]) -> None:
    """Without `subprocess`: the shim reaps its children itself, and this child is waited for by its pid."""
    import tempfile

    with tempfile.TemporaryFile() as said:
        moves = [(os.POSIX_SPAWN_DUP2, said.fileno(), 1), (os.POSIX_SPAWN_DUP2, said.fileno(), 2)]
        pid = os.posix_spawn(argv[0], argv, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, file_actions=moves)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        said.seek(0)
        words = said.read(500).decode(errors="replace").strip()
    if code:
        raise OSError(errno.EIO, f"{argv[0]} ended with {code}: {words}")


def _attach(image: str) -> tuple[int, int]:
    """Attach the image to a loop device. Returns its number, and a descriptor that keeps it until it is mounted. It
    frees itself when it is no longer used, whenever this process dies."""
    with contextlib.ExitStack() as opened:
        backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
        opened.callback(os.close, backing)
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
        opened.callback(os.close, control)
        for _ in range(_TRIES):
            number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
            device = os.open(_node(number), os.O_RDWR | os.O_CLOEXEC)
            info = struct.pack("=5Q4I64s64s32s2Q", 0, 0, 0, 0, 0, 0, 0, 0, _AUTOCLEAR, b"", b"", b"", 0, 0)
            config = bytearray(struct.pack("=2I", backing, 0) + info + bytes(64))
            try:
                fcntl.ioctl(device, _LOOP_CONFIGURE, config)
                return number, device
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:
                    raise
        raise OSError(errno.EBUSY, "no loop device is free")


def _node(number: int) -> str:
    """In a container /dev does not follow the kernel: the node of a new device has to be created there."""
    path = f"/dev/loop{number}"
    if not os.path.exists(path):
        with contextlib.suppress(FileExistsError):
            os.mknod(path, 0o600 | 0o060000, os.makedev(7, number))
    return path


# --- reading ---


def is_own(folder: str, name: str = "work") -> bool:
    """Whether the folder is on a file system of its own."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return briefly(os.stat, os.path.join(folder, name)).st_dev != briefly(os.stat, folder).st_dev
    return False


def used_mib(place: str) -> int:
    disk = os.statvfs(place)
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize // MIB


def is_full(place: str) -> bool:
    """Whether writes there fail for lack of space."""
    disk = os.statvfs(place)
    return disk.f_bavail * disk.f_frsize < _FULL_BYTES or (disk.f_files > 0 and disk.f_favail == 0)


def measured_mib(*places: str) -> int:
    """Disk usage of the files in these folders, counted one by one. Symbolic links are not followed."""
    blocks = 0
    unseen = list(places)
    while unseen:
        with contextlib.suppress(OSError), os.scandir(unseen.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    blocks += entry.stat(follow_symlinks=False).st_blocks
                    if entry.is_dir(follow_symlinks=False):
                        unseen.append(entry.path)
    return blocks * 512 // MIB


# --- removing ---


def detach(folder: str) -> None:
    """Remove all mounts in the folder, and its loop devices. Idempotent. Data that is not on the disk yet is discarded,
    not written: nobody will read it.

    A mount namespace that some other process copied meanwhile has the mounts as well, and would keep the device in use.
    When the folder below a mount is removed, the kernel removes the mount there too."""
    for place in mounts_below(folder):
        if is_own(os.path.dirname(place), os.path.basename(place)):
            with contextlib.suppress(OSError):
                _shut_down(place)
        with contextlib.suppress(FileNotFoundError):
            linux.unmount(place)
        with contextlib.suppress(OSError):
            os.rmdir(place)
    _forget_places(folder)
    deadline = time.monotonic() + _GONE_S
    pause = 0.002
    while loops_below(folder) and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    if left := mounts_below(folder) + loops_below(folder):
        raise OSError(errno.EBUSY, f"still in use: {', '.join(left)}")


def _forget_places(folder: str) -> None:
    """Remove mount points from which a process that died had only removed the visible mount."""
    if exists(os.path.join(folder, IMAGE)):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):  # not a folder, or not empty: not a mount point
                os.rmdir(os.path.join(folder, name))


def _shut_down(place: str) -> None:
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _EXT4_SHUTDOWN, struct.pack("=I", _WITHOUT_FLUSH))
    finally:
        os.close(fd)
