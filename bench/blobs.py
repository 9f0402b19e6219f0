"""Content transfer: up and down in MB/s against plain `curl` and `cp` with the same store, and many small files.

One large file of random bytes is sent to a store through signed addresses and fetched again: once by `curl`, as one
object, and once as Holdfast does it: read, hashed, split, sent, fetched, verified, written. The stores: an S3 server
(`rclone serve s3`), and a folder behind the orchestrator's blob endpoint, in a separate process. `cp` is measured for
comparison: it uses no network and hashes nothing. Then many small files. Each pair alternates and medians are compared,
so that other load on the machine affects both. Bar: 60 % of curl.
Path: HTTP over loopback, no TLS (loopback); fsync on accepted content, as shipped; none in curl and cp.

    python bench/blobs.py [--mib 1024] [--files 100000] [--rounds 3] [--json]
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from holdfast.blobs import (
    Blob,
    BlobStore,
    BytesSource,
    FirstOf,
    FolderSource,
    FolderStore,
    LinkSigner,
    Manifest,
    Unpacking,
    accept,
    incoming_key,
    missing,
    owned_key,
    owner_hash,
    scan,
    sha_of,
)
from holdfast.blobs.lines import ThreadTransport
from holdfast.blobs.s3 import S3Place, S3Store
from holdfast.blobs.store import each
from holdfast.blobs.transfer import download, upload
from holdfast.testing.processes import free_port, wait_for

OWNER, UPLOADER = owner_hash("bench"), "att_bench.1"
KEY, SECRET = "benchaccesskey", "benchsecretkey"


class Door:
    """Signs addresses for everybody."""

    def __init__(self, store: BlobStore) -> None:
        self.store = store

    async def missing(self, blobs: Sequence[Blob]) -> Collection[str]:
        return await missing(self.store, UPLOADER, OWNER, blobs)

    async def links(self, method: str, blobs: Sequence[Blob]) -> Mapping[str, str]:
        def key(sha: str) -> str:
            return incoming_key(UPLOADER, sha) if method == "PUT" else owned_key(OWNER, sha)

        return {b.sha: await self.store.sign(method, key(b.sha), size=b.size, expires_s=3600) for b in blobs}


def timed(do: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    answer = do()
    return time.perf_counter() - began, answer


def shell(*words: str) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def random_file(path: Path, mib: int) -> None:
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())


def with_manifest(folder: Path, manifest: Manifest) -> tuple[str, tuple[Blob, ...], FirstOf]:
    data = manifest.to_bytes()
    name = sha_of(data)
    source = FirstOf(BytesSource({name: data}), FolderSource(folder, manifest))
    return name, (*manifest.blobs, Blob(name, len(data))), source


def warm(work: Path, mib: int) -> None:
    """Memory that the hypervisor has not allocated yet is up to fifteen times slower to write to. So before each timed
    step, ours or not, as much memory as it will fill is used and freed."""
    scratch = work / "warm"
    with scratch.open("wb") as file:
        for _ in range(2 * mib):
            file.write(bytes(1 << 20))
    scratch.unlink()


async def through_http(store: BlobStore, folder: Path, into: Path) -> dict[str, float]:
    """Seconds of each step."""
    times: dict[str, float] = {}
    mib = (folder / "large").stat().st_size >> 20
    warm(folder.parent, mib)
    times["scan"], scanned = timed(lambda: scan(folder))
    name, blobs, source = with_manifest(folder, scanned.manifest)
    async with httpx.AsyncClient(transport=ThreadTransport()) as http:
        began = time.perf_counter()
        await upload(blobs, source, Door(store), http)
        times["send"] = time.perf_counter() - began
        began = time.perf_counter()
        accepted = await accept(store, UPLOADER, OWNER, name)
        assert not accepted.missing
        times["accept"] = time.perf_counter() - began
        warm(folder.parent, mib)
        began = time.perf_counter()
        unpacking = Unpacking(into, scanned.manifest)
        await download(unpacking.prepare(), unpacking.put, Door(store), http)
        unpacking.finish()
        times["fetch"] = time.perf_counter() - began
    return times


@contextlib.contextmanager
def served(words: list[str], url: str, log: Path) -> Iterator[None]:
    with log.open("wb") as out:
        server = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        wait_for(lambda: answers(url), "the server to answer", timeout_s=30)
        yield
    finally:
        server.kill()
        server.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code > 0
    except httpx.TransportError:
        return False


def s3_rounds(work: Path, mib: int, rounds: int) -> dict[str, Any]:
    port = free_port()
    (work / "s3" / "bucket").mkdir(parents=True)
    words = [
        str(Path(sysconfig.get_path("scripts")) / "rclone"), "serve", "s3", "--auth-key", f"{KEY},{SECRET}",
        "--config", str(work / "none.conf"), "--addr", f"127.0.0.1:{port}", str(work / "s3"),
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    with served(words, url, work / "rclone.log"):
        store = S3Store(S3Place(bucket="bucket", endpoint=url, access_key_id=KEY, secret_access_key=SECRET))
        return play(store, work, mib, rounds, work / "s3" / "bucket")


def folder_rounds(work: Path, mib: int, rounds: int) -> dict[str, Any]:
    port = free_port()
    secret = os.urandom(32)
    url = f"http://127.0.0.1:{port}"
    words = [sys.executable, __file__, "--serve", str(port), "--root", str(work / "store"), "--secret", secret.hex()]
    store = FolderStore(work / "store", LinkSigner(secret, f"{url}/blobs"))
    asyncio.run(store.probe())
    with served(words, url, work / "door.log"):
        return play(store, work, mib, rounds, work / "store")


def serve(port: int, root: Path, secret: bytes) -> None:
    """The orchestrator's blob endpoint alone."""
    import uvicorn

    from holdfast.orchestrator.content.blob_http import BlobTransferApp

    async def nothing(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    signer = LinkSigner(secret, f"http://127.0.0.1:{port}/blobs")
    door = BlobTransferApp(nothing, FolderStore(root, signer), signer)
    uvicorn.run(door, host="127.0.0.1", port=port, log_level="error", lifespan="off", interface="asgi3")


def play(store: BlobStore, work: Path, mib: int, rounds: int, kept: Path) -> dict[str, Any]:
    """Alternates plain and ours. The files of one are removed before the other runs, and the order alternates."""
    ours, plain = [], []
    folder = work / "up"
    folder.mkdir()

    def clear() -> None:
        for left in (work / "down", kept / "incoming", kept / "owned"):
            shutil.rmtree(left, ignore_errors=True)
        for left in ("plain", "copied"):
            (work / left).unlink(missing_ok=True)

    def run_plain() -> None:
        key = incoming_key("curl", file_sha(folder / "large"))
        put, get = (asyncio.run(store.sign(m, key, size=mib << 20, expires_s=3600)) for m in ("PUT", "GET"))
        row = {}
        warm(work, mib)
        row["up"], _ = timed(lambda: shell("curl", "-sf", "-T", str(folder / "large"), put))
        warm(work, mib)
        row["down"], _ = timed(lambda: shell("curl", "-sf", "-o", str(work / "plain"), get))
        warm(work, mib)
        row["cp"], _ = timed(lambda: shell("cp", str(work / "plain"), str(work / "copied")))
        plain.append(row)
        clear()

    def run_ours() -> None:
        ours.append(asyncio.run(through_http(store, folder, work / "down")))
        assert file_sha(work / "down/large") == file_sha(folder / "large")
        clear()

    for number in range(rounds + 1):
        random_file(folder / "large", mib)  # a new one: stores remember the names of files deleted behind their back
        for run in (run_plain, run_ours) if number % 2 else (run_ours, run_plain):
            run()
    shutil.rmtree(folder)
    return compare(mib, ours[1:], plain[1:])


def file_sha(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def in_process(store: BlobStore, folder: Path, into: Path) -> dict[str, float]:
    """Without HTTP: the cost of the store itself and of the files."""
    await store.probe()
    times: dict[str, float] = {}
    times["scan"], scanned = timed(lambda: scan(folder))
    name, blobs, source = with_manifest(folder, scanned.manifest)

    async def put(blob: Blob) -> None:
        data = await asyncio.to_thread(source.read, blob.sha)
        await store.put(incoming_key(UPLOADER, blob.sha), bytes(data))

    async def get(blob: Blob) -> None:
        data = await store.get(owned_key(OWNER, blob.sha), bytes_max=blob.size)
        await asyncio.to_thread(unpacking.put, blob.sha, data)

    began = time.perf_counter()
    await each(blobs, put, 4)
    times["send"] = time.perf_counter() - began
    began = time.perf_counter()
    assert not (await accept(store, UPLOADER, OWNER, name)).missing
    times["accept"] = time.perf_counter() - began
    began = time.perf_counter()
    unpacking = Unpacking(into, scanned.manifest)
    await each(unpacking.prepare(), get, 4)
    unpacking.finish()
    times["fetch"] = time.perf_counter() - began
    return times


def compare(mib: int, ours: list[dict[str, float]], plain: list[dict[str, float]]) -> dict[str, Any]:
    def median(rows: list[dict[str, float]], name: str) -> float:
        return statistics.median(row[name] for row in rows)

    def rate(seconds: float) -> int:
        return round(mib * 1.048576 / seconds)

    sent = [{"both": row["scan"] + row["send"]} for row in ours]
    return {
        "cp_mb_s": rate(median(plain, "cp")),
        "up_plain_mb_s": rate(median(plain, "up")),
        "up_mb_s": rate(median(ours, "send")),
        "up_with_scan_mb_s": rate(median(sent, "both")),
        "up_percent": round(100 * median(plain, "up") / median(ours, "send")),
        "up_with_scan_percent": round(100 * median(plain, "up") / median(sent, "both")),
        "accept_mb_s": rate(median(ours, "accept")),
        "down_plain_mb_s": rate(median(plain, "down")),
        "down_mb_s": rate(median(ours, "fetch")),
        "down_percent": round(100 * median(plain, "down") / median(ours, "fetch")),
    }


def small_files(work: Path, files: int) -> dict[str, Any]:
    folder = work / "many"
    for number in range(files):
        if number % 500 == 0:
            (folder / f"d{number // 500:04}").mkdir(parents=True)
        (folder / f"d{number // 500:04}" / f"f{number:06}").write_bytes(b"%d\n" % number * 20)
    plain, _ = timed(lambda: shell("cp", "-r", str(folder), str(work / "plain-many")))
    times = asyncio.run(in_process(FolderStore(work / "many-store"), folder, work / "many-down"))
    scanned = scan(folder)
    again, second = timed(lambda: scan(folder, index=scanned.index))
    return {
        "files": files, "cp_s": round(plain, 1), **{f"{k}_s": round(v, 1) for k, v in times.items()},
        "scan_again_s": round(again, 1), "read_again": second.bytes_read,
        "manifest_mb": round(len(scanned.manifest.to_bytes()) / 1e6, 1),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--secret", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.root, bytes.fromhex(args.secret))
        return 0
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        table = {
            f"S3, one file of {args.mib} MiB, against curl": s3_rounds(Path(folder), args.mib, args.rounds),
            f"folder, one file of {args.mib} MiB, against curl": folder_rounds(Path(folder), args.mib, args.rounds),
            "small files, folder store": small_files(Path(folder), args.files),
            "this process": {"memory_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024},
        }
    if args.json:
        json.dump(table, sys.stdout, indent=2)
        return 0
    for title, row in table.items():
        print(title)
        for name, value in row.items():
            print(f"{name:>24}  {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
