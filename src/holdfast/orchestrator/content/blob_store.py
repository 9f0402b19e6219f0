"""Opens the blob store that the configuration names, and serves its signed URLs if the store needs that."""

import logging
import os
import secrets
from collections.abc import Callable
from urllib.parse import urlsplit

from litestar.types import ASGIApp

from holdfast.blobs.errors import BlobStoreError, StoreRefused
from holdfast.blobs.folder import FolderStore
from holdfast.blobs.s3 import S3Place, S3Store
from holdfast.blobs.signing import KEY_BYTES_MIN, LinkSigner
from holdfast.errors import Misconfigured
from holdfast.identity import private_files
from holdfast.orchestrator.config import OrchestratorConfig
from holdfast.orchestrator.content.blob_http import PREFIX, BlobTransferApp
from holdfast.orchestrator.content.s3_inputs import S3Inputs, check_apart
from holdfast.orchestrator.content.service import ContentService

log = logging.getLogger("holdfast.blobs")

Doorway = Callable[[ASGIApp], ASGIApp]
"""Wraps an app with the handler of the store's signed URLs, if there is one."""


def open_content(config: OrchestratorConfig, now_s: Callable[[], float]) -> tuple[ContentService, Doorway]:
    """`now_s`: the clock that signed URLs expire by, where this process signs them."""
    own = s3_place(config.blobs) if config.blobs else None
    readable = [s3_place(url) for url in config.s3_inputs]
    check_apart(readable, own)
    inputs = S3Inputs(readable)
    if own is not None:
        return ContentService(S3Store(own), inputs), lambda app: app
    secret = private_files.make_once(
        config.data / "blobs.key", "signing key", lambda: secrets.token_hex(KEY_BYTES_MIN).encode()
    )
    # URLs without a host: the recipient knows which host it asked.
    signer = LinkSigner(secret, PREFIX, now_s)
    store = FolderStore(config.data / "blobs", signer)
    return ContentService(store, inputs), lambda app: BlobTransferApp(app, store, signer)


async def try_out(content: ContentService) -> None:
    """Check at startup that the store can be used. A store that is down for a while does not prevent it."""
    try:
        await content.store.probe()
    except StoreRefused as wrong:
        raise Misconfigured(wrong.says, hint=wrong.hint, code=wrong.code) from None
    except BlobStoreError as wrong:
        log.error("the blob store cannot be used now: %s", wrong)


def s3_place(url: str) -> S3Place:
    """`s3://BUCKET[/PREFIX]`; endpoint, region and keys from the environment, as every S3 program reads them."""
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
        raise Misconfigured(
            f"the place {url[:80]!r} is not s3://BUCKET[/PREFIX]",
            hint="Keys belong into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, an endpoint into AWS_ENDPOINT_URL.",
        )
    environ = os.environ
    return S3Place(
        bucket=parts.netloc,
        prefix=parts.path.strip("/"),
        endpoint=environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL", ""),
        region=environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1",
        access_key_id=environ.get("AWS_ACCESS_KEY_ID", ""),
        secret_access_key=environ.get("AWS_SECRET_ACCESS_KEY", ""),
    )
