"""Posts 12 MiB of JSON without a token, again and again."""

from attacks.flood import Part, main

BODY_BYTES = 12 << 20
HEAD = b"POST /node/v1/attempts/att_x/missing?fence=1 HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % BODY_BYTES + b'{"blobs":[' + b'["x",1],' * (BODY_BYTES // 8)


def parts() -> list[Part]:
    return [memoryview(WHOLE)[: len(HEAD) + BODY_BYTES]]


if __name__ == "__main__":
    main(parts, again=True)
