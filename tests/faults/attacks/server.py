"""An orchestrator on loopback with few descriptors, to be attacked: `python -m attacks.server CONFIG` (JSON)."""

import json
import resource
import sys
from pathlib import Path

from holdfast.orchestrator.config import OrchestratorConfig
from holdfast.orchestrator.connection_limits import ConnectionLimits
from holdfast.orchestrator.serve import run_orchestrator

DESCRIPTORS = 2_048


def main() -> int:
    chosen = json.loads(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    limits = ConnectionLimits(**chosen["limits"])
    http, nodes, files = (f"127.0.0.1:{chosen['ports'][name]}" for name in ("http", "nodes", "files"))
    data, tls = Path(chosen["data"]), chosen["tls"]
    return run_orchestrator(
        OrchestratorConfig(data=data, http=http, nodes=nodes, files=files, tls=tls, limits=limits, preset="test")
    )


if __name__ == "__main__":
    sys.exit(main())
