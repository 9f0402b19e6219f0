"""Sends half of a request, and no more."""

from attacks.flood import Part, main


def parts() -> list[Part]:
    return [b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Le"]


if __name__ == "__main__":
    main(parts)
