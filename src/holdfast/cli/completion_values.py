"""What a shell can complete beyond words that stand in the program: jobs, nodes, arrays and contexts that exist.

Whoever presses Tab waits: an answer that is not there after a short while is none, and nothing here ever fails loudly
or is imported by a command that runs. Asks by itself, without the SDK, which would take longer to import than to
answer.
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
    """Those that can still be ended, by their ids: a note is no name."""
    return _quickly(incomplete, lambda: [one["id"] for one in _asked("/v1/tokens") if one["state"] == "good"])


def contexts(incomplete: str) -> list[str]:
    def known() -> list[str]:
        from holdfast.client.contexts import LOCAL, read
        from holdfast.client.endpoint import home

        return sorted({LOCAL, *read(home()).contexts})

    return _quickly(incomplete, known)


def _called(found: list[dict[str, Any]]) -> list[str]:
    """Names first: they are what a person remembers."""
    return [*dict.fromkeys(str(one.get("name", "")) for one in found), *(str(one["id"]) for one in found)]


def _one_word(word: str) -> bool:
    """Names come from people and machines nobody controls, ids from whoever answers; into a shell go only those that
    mean nothing to it, and that bash takes for one word: it breaks them at : and @."""
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
    """Of the answer, what goes on so, if it comes in time; else nothing, and not a word."""
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
