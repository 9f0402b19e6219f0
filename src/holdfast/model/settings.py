"""The settings of a network, each with its reason. Three presets: `lan` (the default), `wan`, `test`."""

import msgspec

from holdfast.model.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS


class Settings(msgspec.Struct, frozen=True):
    """Durations are positive; keepalive < silence floor <= ceiling < lease; orphan limit < suspect limit."""

    # liveness
    heartbeat_ms: int = 30 * SECOND_MS
    """Interval at which an idle node reports that it is alive and how busy it is. Cheap: 5,000 nodes send 167 messages
    a second."""
    keepalive_ms: int = 1 * SECOND_MS
    """Interval at which a node that holds work reports. A hung agent sends no reports, but its transport still answers
    pings."""
    silence_floor_ms: int = 3 * SECOND_MS
    """The shortest silence after which a node that holds work is suspected: a busy machine may miss two reports."""
    silence_ceiling_ms: int = 5 * SECOND_MS
    """The longest such silence, for any jitter: a freeze under work is found within this plus one keep-alive."""
    idle_silence_ms: int = 95 * SECOND_MS
    """Silence after which an idle node is suspected: slightly more than three heartbeats, as no work is at stake."""
    suspect_ms_max: int = 65 * MINUTE_MS
    """A node that is away for this long is lost: its attempts are written off. Longer than `orphan_ms_max`, because
    until then a returning node may still deliver the result of work that ran without contact."""
    reconnect_grace_ms: int = 15 * SECOND_MS
    """After the orchestrator itself was away, nodes have this long to dial in before any is suspected. Longer than a
    node's pause between two tries (5 s) plus its handshake."""
    late_tolerance_ms: int = 500
    """The orchestrator's loop counts as late (and moves all deadlines) beyond this."""

    # quarantine and probation
    strikes_to_quarantine: int = 3
    """A node's own faults among its last ten ended attempts before it is quarantined; one in ten may be chance."""
    quarantine_ms: int = 30 * SECOND_MS
    """Length of the first quarantine; doubles with each further one."""
    quarantine_ms_max: int = 1 * HOUR_MS
    """The doubling stops here: a repaired machine waits an hour at most."""
    quarantine_share_max_permille: int = 500
    """No more than this share of the connected fleet is quarantined for faults: fail open. Sick nodes always are."""
    probation_pings: int = 2
    """Probes that a returning node must answer before it is given work."""
    probation_wins: int = 1
    """Attempts that it must then complete, one at a time, to leave probation."""
    probation_ms: int = 60 * SECOND_MS
    """Probation also ends after this long without a fault, so that it also ends on an idle network."""
    ping_ms: int = 500
    """Interval between probes of a node on probation: two probes take a second, and a live link answers in far less."""

    # the word of a machine
    newcomer_attempts: int = 4
    """Attempts that a machine without a record holds at once; doubles with each so many good ends. Failures that it
    blames on owners count as held until they are confirmed, so that a liar touches few jobs before it is found out."""
    record_ends_min: int = 20
    """Ended attempts before a machine's word alone counts against a job's owner."""
    record_share_factor: int = 2
    """Its word counts while it blames owners at most this many times as often as the other machines do."""

    # attempts
    offer_ms_max: int = 10 * SECOND_MS
    """An offer that is unanswered for this long goes to another node."""
    resend_ms: int = 2 * SECOND_MS
    """A command whose effect is not reported within this time is sent again."""
    prepare_ms_max: int = 15 * MINUTE_MS
    """Time limit of the preparation: enough for a large image over a home line. Beyond that, try another node."""
    run_ms_max: int = 7 * DAY_MS
    """Time limit of jobs that have none of their own, because no state is unbounded."""
    run_slack_ms: int = 30 * SECOND_MS
    """The node stops a job at its time limit; the orchestrator revokes the attempt this much later."""
    upload_ms_max: int = 15 * MINUTE_MS
    """Time limit of the upload: enough for both logs at their size limit over 1.2 Mbit/s."""
    stop_grace_ms: int = 5 * SECOND_MS
    """Time between SIGTERM and SIGKILL."""
    attempts_max: int = 6
    """Failures after which a job ends: enough for a flaky fleet, few enough that a broken job ends the same day."""
    lasting_ms: int = 10 * MINUTE_MS
    """A body that runs for this long counts as progress: earlier takeovers are forgiven, so a job that takes a week may
    change machines every day. A job that never runs this long still ends after a few dozen attempts."""
    backoff_ms: int = 500
    """Wait before the next attempt after the first failure; doubles. A takeover does not wait."""
    backoff_ms_max: int = 60 * SECOND_MS
    """The doubling stops here: people look at a failing job at most once a minute, so waiting longer gains nothing."""
    poison_nodes: int = 3
    """A job is stopped after it was running on this many different machines as they went down: not by chance."""
    lease_ms: int = 15 * SECOND_MS
    """Length of a lease (class `never`): the body is stopped at 0.9 of it, and the orchestrator waits for 1.1 of it."""
    orphan_ms_max: int = 1 * HOUR_MS
    """Work that is cut off from the orchestrator continues for this long, then the node stops it."""
    drain_ms: int = 60 * SECOND_MS
    """Attempts on a draining node may finish within this time; then they are taken over."""
    save_ms_max: int = 20 * SECOND_MS
    """A job on a drained machine may take this long for its last checkpoint. Several gigabytes over a home line do not
    fit, but then the previous checkpoint is recent."""

    # stragglers
    stall_ms: int = 10 * MINUTE_MS
    """A body that neither prints nor computes for this long is flagged. Waiting for an external service can take
    minutes. A second attempt costs only idle room, so a false alarm is cheap, but it should be rare."""
    slow_factor: int = 3
    """A body that runs for this many times as long as its peers took is flagged. A slow machine alone is rarely slower
    than this, and the time lost is at most what the rest would have taken."""
    slow_peers_min: int = 4
    """Number of peers that must have ended before their median is used."""
    slow_ms_min: int = 2 * MINUTE_MS
    """A body is not flagged as slow before this: shorter jobs are not worth a second attempt."""
    seconds_max: int = 2
    """Attempts beside a straggler in a job's life: one may be lost with its machine; a job that needs more always looks
    like a straggler."""

    # joining
    open_join: bool = False
    """True: any machine may join without a token. The network operator's choice, never a default."""

    joins_ms: int = 1 * HOUR_MS
    """The time over which new machines are counted. A machine that is known and dials in again is not counted."""
    joins_per_token_max: int = 1_000
    """New machines by one token in that time: a large fleet, but not every identity that somebody can invent.
    `holdfast up --limit` sets this and the two that follow; `0` is no limit."""
    joins_per_address_max: int = 256
    """New machines from one address (IPv6: one /64) in that time: an office behind one router. Behind a proxy, all
    machines have one address."""
    joins_max: int = 10_000
    """New machines in that time: bounds how fast memory and store grow, whatever tokens there are."""
    tokens_per_operator_max: int = 1_000
    """Join tokens of one node operator that are listed, valid or not: a token for each machine of a large site."""
    unrest_ms: int = 10 * MINUTE_MS
    """The time over which the sessions of a node and the changes of its offer are counted."""
    unrest_max: int = 240
    """Sessions and changes of one node in that time; further ones are refused. Each adds up to three journal entries.
    A node on a link that breaks every few seconds stays below."""

    # retention
    nodes_keep_ms: int = 30 * DAY_MS
    """How long a machine that is lost or gone is remembered: it may return from a holiday. Then it needs a new token,
    and only its id and the fingerprint of its key are kept, so that no other machine takes its id."""
    departed_nodes_max: int = 10_000
    """Machines that are lost or gone and still remembered; the one that left first is forgotten first."""
    tokens_keep_ms: int = 30 * DAY_MS
    """How long a join token is listed after it expired."""
    jobs_keep_ms: int = 90 * DAY_MS
    """How long an ended job is listed: a quarter of a year. Its files and logs go before. Then its id, the hash of its
    specification, its verdict and its end are kept, so that its idempotency key runs nothing again."""
    journal_keep_ms: int = 90 * DAY_MS
    """How long journal entries are kept: as long as the jobs that they tell of."""

    # queue
    queue_ms_max: int = 1 * DAY_MS
    """Queue limit of jobs that name none: a day, so that a job can wait for a machine that is only on at night."""
    reserve_ms: int = 60 * SECOND_MS
    """A job that is first in its owner's queue for this long is too large for the room that appears, so a machine is
    reserved for it. Most waits on a busy network are shorter, and a reserved machine earns less."""
    reserved_share_max_permille: int = 100
    """Share of the machines in service that may be reserved at a time; at least one machine."""
    owner_live_jobs_max: int = 100_000
    """Jobs of one owner that have not ended; bounds memory, not fairness."""
    live_jobs_max: int = 1_000_000
    """Jobs of all owners that have not ended: every live job is in memory."""

    # placement
    candidates: int = 2
    """Nodes compared per decision: the better of two random nodes avoids most of the imbalance; more cost time."""
    attempts_per_node_max: int = 256
    """Attempts on one node at a time, so that a report fits into one message."""

    # files
    files_keep_ms: int = 30 * DAY_MS
    """How long the files of an ended job are kept if its owner has not confirmed receipt: long enough for a holiday."""
    files_keep_received_ms: int = 1 * DAY_MS
    """How long they are kept after receipt: until the next day, so that the job can be run again or its files fetched
    to a second place."""

    scrub_bytes_per_s: int = 4 << 20
    """How fast stored content is read again and compared with its hash, in bytes per second: a terabyte takes three
    days, and a disk notices little of it."""
    owner_incoming_bytes_max: int = 64 * 1024 * 1024 * 1024
    """Bytes that one owner's programs may have sent and not yet had accepted; eight times as many may be accepted in
    six hours. Attempts are limited by the disk that their job asked for."""
    logs_keep_ms: int = 30 * DAY_MS
    """How long the logs of an ended job are kept: as long as its files. Time without a serving orchestrator does not
    count."""

    # limits
    log_bytes_max: int = 64 * 1024 * 1024
    """Log size limit per attempt and stream; a line at the end says that the rest was cut."""
    argv_bytes_max: int = 32 * 1024
    """Size limit of a job's arguments: half a message, so that the rest of the Start command fits too."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not isinstance(value, bool) and value <= 0:
                raise ValueError(f"{name} must be greater than 0, not {value}")
        if not self.keepalive_ms < self.silence_floor_ms <= self.silence_ceiling_ms < self.lease_ms:
            raise ValueError("keepalive_ms < silence_floor_ms <= silence_ceiling_ms < lease_ms does not hold")
        if not self.orphan_ms_max < self.suspect_ms_max:
            raise ValueError("orphan_ms_max must be less than suspect_ms_max, or results of cut-off work are lost")

    @staticmethod
    def lan() -> "Settings":
        return Settings()

    @staticmethod
    def wan() -> "Settings":
        """For homes and mobile links: more jitter, slower recovery of a link, the same bound on detecting a freeze."""
        return Settings(
            keepalive_ms=1_500,
            silence_floor_ms=4_000,
            silence_ceiling_ms=5_400,
            offer_ms_max=20 * SECOND_MS,
            resend_ms=4 * SECOND_MS,
            lease_ms=30 * SECOND_MS,
            reconnect_grace_ms=30 * SECOND_MS,
        )

    @staticmethod
    def test() -> "Settings":
        """For tests: every wait is short; nothing is switched off."""
        return Settings(
            heartbeat_ms=1_000,
            keepalive_ms=200,
            silence_floor_ms=800,
            silence_ceiling_ms=1_500,
            idle_silence_ms=3_500,
            suspect_ms_max=20 * SECOND_MS,
            orphan_ms_max=15 * SECOND_MS,
            reconnect_grace_ms=7_000,
            quarantine_ms=2_000,
            quarantine_ms_max=10_000,
            probation_ms=5_000,
            ping_ms=100,
            offer_ms_max=3_000,
            resend_ms=500,
            prepare_ms_max=20_000,
            upload_ms_max=20_000,
            stop_grace_ms=500,
            lasting_ms=5_000,
            backoff_ms=100,
            backoff_ms_max=1_000,
            lease_ms=3_000,
            drain_ms=2_000,
            reserve_ms=2_000,
            save_ms_max=5_000,
            stall_ms=60 * SECOND_MS,
            slow_ms_min=10 * SECOND_MS,
            late_tolerance_ms=250,
            unrest_ms=60 * SECOND_MS,
        )

    @staticmethod
    def preset(name: str) -> "Settings":
        presets = {"lan": Settings.lan, "wan": Settings.wan, "test": Settings.test}
        if name not in presets:
            raise ValueError(f"no preset is called {name!r}; there are {', '.join(presets)}")
        return presets[name]()
