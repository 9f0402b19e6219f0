"""Limits on the size of messages, and the connection settings of both sides.

Numbers only: nothing here opens a connection or looks into a message.
"""

CONTROL_BYTES_MAX = 64 * 1024
"""Of a control frame. Small, so that no frame can delay a keep-alive."""
LOG_DATA_BYTES_MAX = 256 * 1024
"""Of the data in one log chunk: large enough that the overhead per message does not matter."""
TRANSPORT_BYTES_MAX = LOG_DATA_BYTES_MAX + 4 * 1024
"""gRPC's own limit, for either stream: a full log chunk and its envelope. gRPC has one limit for a whole server, so the
control stream's smaller one is checked in wire.convert."""

BULK_KEY_METADATA = "holdfast-bulk-key"
"""The metadata key under which a node presents its session's `bulk_key` on the Bulk stream."""
NONCE_BYTES = 32
HELD_MAX = 1024
"""Attempts in one report: four times what a node is ever given, which leaves room for remains of earlier ones."""
GPUS_MAX = 64
INTERFACES_MAX = 32
LABEL_CHARS_MAX = 128
"""Names, models, versions: one line, shown in tables."""
WORDS_CHARS_MAX = 1_000
"""Reasons and details: some lines, shown to a person."""
ARGV_ITEMS_MAX = 1024
ARGV_BYTES_MAX = 32 * 1024
ENV_ITEMS_MAX = 256
ENV_BYTES_MAX = 16 * 1024
"""Together with argv it leaves a quarter of a frame for everything else in a Start."""
FEATURES_MAX = 32
INPUTS_MAX = 64
REFERENCES_BYTES_MAX = 12 * 1024
"""Image, paths, names and URLs of inputs, all together: with argv and env they fit into a frame."""

COUNT_MAX = 2**62
"""Fences, sequence numbers, epochs, nonces: never negative, and with room to grow."""
MILLISECONDS_MAX = 10 * 366 * 24 * 3600 * 1000
"""Ten years: a larger value is a mistake in the unit."""
CPU_MILLI_MAX = 100_000_000
MEMORY_MIB_MAX = 2**31
DISK_MIB_MAX = 2**36
BYTES_MAX = 2**50
PERMILLE_MAX = 1_000_000
"""Load may exceed the machine, but not a thousandfold."""

_KEEPALIVE_MS = 20_000
"""Home routers drop an idle connection after 30 s at worst."""
_KEEPALIVE_TIMEOUT_MS = 45_000
"""Long on purpose. The application's own keep-alive detects dead peers; this only cleans up dead sockets. A node must
not disconnect from an orchestrator that is frozen for half a minute: on resume, the orchestrator would see broken
streams and blame the nodes."""

Options = list[tuple[str, int | str]]


def client_options(server_name: str | None = None) -> Options:
    """Channel options of a node. `server_name`: the name to expect in the pinned certificate (TLS only)."""
    options: Options = [
        ("grpc.max_send_message_length", TRANSPORT_BYTES_MAX),
        ("grpc.max_receive_message_length", CONTROL_BYTES_MAX),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        # 0: no limit. An idle node sends nothing for 30 s, and the pings in between must still be sent.
        ("grpc.http2.max_pings_without_data", 0),
        # The node reconnects with its own back-off and a new handshake; gRPC must not retry a stream by itself.
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 200),
        # Time limit of one try to connect, including TLS. With less time than a busy orchestrator needs for its whole
        # fleet, every node would try again and again, and none would succeed.
        ("grpc.min_reconnect_backoff_ms", 10_000),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        # One process may run many nodes (tests, benchmarks): each has its own connection.
        ("grpc.use_local_subchannel_pool", 1),
        # The pin is checked on a direct connection; calls must not go through a proxy either.
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_metadata_size", 8 * 1024),
    ]
    if server_name is not None:
        options.append(("grpc.ssl_target_name_override", server_name))
        options.append(("grpc.default_authority", server_name))
    return options


def server_options(connections_max: int = 0) -> Options:
    """Server options of the orchestrator. `connections_max`: further connections are refused; 0: no limit."""
    bounded: Options = [("grpc.max_allowed_incoming_connections", connections_max)] if connections_max else []
    return [
        *bounded,
        ("grpc.max_send_message_length", CONTROL_BYTES_MAX),
        ("grpc.max_receive_message_length", TRANSPORT_BYTES_MAX),
        # Nodes ping every 20 s; without this, gRPC treats anything below five minutes as an attack.
        ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
        ("grpc.keepalive_permit_without_calls", 1),
        # Only to free the sockets of machines that are long gone: the kernel judges silence.
        ("grpc.keepalive_time_ms", 600_000),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        # A node needs two streams, and two more while it replaces them.
        ("grpc.max_concurrent_streams", 8),
        ("grpc.max_metadata_size", 8 * 1024),
        # A client that connects but never starts TLS or HTTP/2 is dropped.
        ("grpc.server_handshake_timeout_ms", 10_000),
        # Two orchestrators must not share a port by mistake.
        ("grpc.so_reuseport", 0),
    ]
