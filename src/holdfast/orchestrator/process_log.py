"""The orchestrator's log on standard error: one JSON object a line, or plain text at a terminal.

It never contains a secret."""

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


class _PlainLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        # It may quote text from an untrusted machine, which must not control the terminal.
        says = "".join(c if c.isprintable() else " " for c in record.getMessage())
        trace = "\n" + self.formatException(record.exc_info) if record.exc_info else ""
        return f"{time.strftime('%H:%M:%S', time.localtime(record.created))}  {level}{says}{trace}"


def log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_PlainLine() if sys.stderr.isatty() else _JsonLine())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Only errors of libraries concern the operator.
    for name in ("uvicorn", "uvicorn.error", "grpc", "asyncio", "alembic", "litestar", "httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
