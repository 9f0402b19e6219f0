"""The orchestrator's own log: one JSON object a line on standard error. Says what happened to whom; never a secret."""

import logging
import sys
import time

import msgspec


class _JsonLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "where": record.name,
            "says": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLine())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Libraries speak of their inside; only what goes wrong there concerns the operator.
    for name in ("uvicorn", "uvicorn.error", "grpc", "asyncio", "alembic", "litestar", "httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
