"""Values for shell completion: the jobs, nodes, tokens and contexts that exist.

A person who presses Tab waits: an answer that takes too long is dropped, and errors are not shown. Commands that run do
not import this module. It sends its requests without the SDK, whose import would take longer than the request.
"""

from collections.abc import Callable
from typing import Any

PATIENCE_S = 0.3
SHOWN_MAX = 200


def jobs(incomplete: str) -> list[str]:
    return _quickly(incomplete, lambda: _called(_asked(f"/v1/jobs?limit={SHOWN_MAX}")["jobs"]))


def nodes(incomplete: str) -> list[str]:
    return _quickly(incomplete, lambda: _called(_asked("/v1/nodes")))


def tokens(incomplete: str) -> list[str]:
    """The ids of tokens that can still be revoked. A note is not a name."""
    return _quickly(incomplete, lambda: [one["id"] for one in _asked("/v1/tokens") if one["state"] == "good"])


def access_tokens(incomplete: str) -> list[str]:
    """The ids of access tokens that can still be revoked."""
    return _quickly(incomplete, lambda: [one["id"] for one in _asked("/v1/access") if one["state"] == "good"])


def contexts(incomplete: str) -> list[str]:
    def known() -> list[str]:
        from holdfast.client.contexts import LOCAL, read
        from holdfast.client.endpoint import home

        return sorted({LOCAL, *read(home()).contexts})

    return _quickly(incomplete, known)


def _called(found: list[dict[str, Any]]) -> list[str]:
    """Names first, because people remember them."""
    return [*dict.fromkeys(str(one.get("name", "")) for one in found), *(str(one["id"]) for one in found)]


def _one_word(word: str) -> bool:
    """Whether a word may be given to a shell: it has no special characters, and bash does not split it, as it does at :
    and @. Names come from people and machines that nobody controls, and ids from the server that answered."""
    return bool(word) and all(c.isascii() and (c.isalnum() or c in "._-/+") for c in word) and word[0] != "-"


def _asked(path: str) -> Any:
    import json
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.parse import urlsplit

    from holdfast.client.endpoint import find, guarded

    endpoint = find()
    address = urlsplit(endpoint.url)
    host, port = address.hostname or "", address.port
    guarded(endpoint, host)
    if address.scheme == "https":
        import ssl

        trusted = ssl.create_default_context(cadata=endpoint.certificate or None)
        # The pinned certificate is the identity, as in the SDK.
        trusted.check_hostname = not endpoint.certificate
        connection: HTTPConnection = HTTPSConnection(host, port, timeout=PATIENCE_S, context=trusted)
    else:
        connection = HTTPConnection(host, port, timeout=PATIENCE_S)
    connection.request("GET", path, headers={"Authorization": f"Bearer {endpoint.token}"})
    answer = connection.getresponse()
    return json.loads(answer.read(4 << 20)) if answer.status == 200 else {"jobs": []} if "jobs" in path else []


def _quickly(incomplete: str, question: Callable[[], list[str]]) -> list[str]:
    """The values that start with `incomplete`, if the answer comes in time; else nothing, and no message."""
    import queue
    import threading

    answers: queue.SimpleQueue[list[str]] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put([word for word in question() if word.startswith(incomplete) and _one_word(word)][:SHOWN_MAX])
        except Exception:
            answers.put([])

    threading.Thread(target=ask, daemon=True).start()
    try:
        return answers.get(timeout=PATIENCE_S)
    except queue.Empty:
        return []
