"""Whether what runs in this container is well: exit code 0 or 1, and a sentence. Standard library only, so that it is
quick and works while everything else does not.

An orchestrator is asked by its own address for /healthz; a node by its status page on loopback (PNODE_PORT).
"""

import json
import os
import ssl
import sys
import urllib.request
from pathlib import Path

PATIENCE_S = 4.0


def ask(url: str, context: ssl.SSLContext | None = None) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with opener.open(url, timeout=PATIENCE_S) as answer:
        return answer.read(1_000_000)


def orchestrator(endpoint: dict[str, str]) -> str:
    context = None
    if endpoint.get("certificate"):
        context = ssl.create_default_context(cadata=endpoint["certificate"])
        context.check_hostname = False  # the certificate itself is compared; it names no address
    ask(endpoint["url"] + "/healthz", context)
    return f"the orchestrator at {endpoint['url']} answers"


def node(port: str) -> str:
    status = json.loads(ask(f"http://127.0.0.1:{port}/status"))
    line = "connected" if status["connected"] else "not connected to its orchestrator"
    return f"the node answers; it is {line} and holds {len(status['held'])} attempt(s)"


def main() -> int:
    place = Path(os.environ.get("HOLDFAST_HOME") or Path.home() / ".holdfast") / "orchestrator" / "endpoint.json"
    try:
        if place.exists():
            print(orchestrator(json.loads(place.read_text())))
        else:
            print(node(os.environ.get("PNODE_PORT") or "7430"))
    except (OSError, ValueError, KeyError) as wrong:
        print(f"not well: {wrong}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
