"""Begins HTTP/2 at the node port, and opens no stream."""

from attacks.flood import Part, main

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def parts() -> list[Part]:
    return [PREFACE + NO_SETTINGS]


if __name__ == "__main__":
    main(parts)
