"""Sends a request, waits for the answer, and sends one byte of a second request."""

from attacks.flood import Part, main


def parts() -> list[Part]:
    return [b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", b"G"]


if __name__ == "__main__":
    main(parts)
