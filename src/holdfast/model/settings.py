"""Every number that shapes behaviour, with its reason. Three presets: `lan` (the default), `wan`, `test`."""

import msgspec

from holdfast.model.time import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS


class Settings(msgspec.Struct, frozen=True):
    """Durations are positive; keepalive < silence floor <= ceiling < lease; orphan limit < suspect limit."""

    # liveness
    heartbeat_ms: int = 30 * SECOND_MS
    """An idle node's sign of life and load. Cheap: 5,000 nodes are 167 messages a second."""
    keepalive_ms: int = 1 * SECOND_MS
    """A node that holds work reports this often; a hung program sends nothing, unlike a transport's ping."""
    silence_floor_ms: int = 3 * SECOND_MS
    """Two reports may be lost to a busy machine before anyone is blamed."""
    silence_ceiling_ms: int = 5 * SECOND_MS
    """However jittery the node, a freeze under work is found within this plus one keep-alive."""
    idle_silence_ms: int = 95 * SECOND_MS
    """Three heartbeats and a little: an idle node has nothing at stake."""
    suspect_ms_max: int = 65 * MINUTE_MS
    """A node away for this long is lost: what it held is written off. Longer than `orphan_ms_max`: until then a
    returning node may still bring the result of work that went on without contact."""
    reconnect_grace_ms: int = 15 * SECOND_MS
    """After the orchestrator itself was away, nodes have this long to dial in before any is suspected. Longer than a
    node waits between two tries (5 s) and its handshake together."""
    late_tolerance_ms: int = 500
    """The orchestrator's loop counts as late (and moves all deadlines) beyond this."""

    # quarantine and probation
    strikes_to_quarantine: int = 3
    """Own faults in a row before a node is set aside; one fault may be chance."""
    quarantine_ms: int = 30 * SECOND_MS
    """First quarantine; doubles with each further one."""
    quarantine_ms_max: int = 1 * HOUR_MS
    """The doubling stops here: a mended machine waits an hour at most."""
    quarantine_share_max_permille: int = 500
    """Behaviour alone never sets aside more than this share of the connected fleet: fail open."""
    probation_pings: int = 2
    """Probes a returning node must answer before it is given anything."""
    probation_wins: int = 1
    """Attempts it must then bring to an end, one at a time, to be fully back."""
    probation_ms: int = 60 * SECOND_MS
    """Or this long without a fault, so that an idle network does not keep a node on trial."""
    ping_ms: int = 500
    """Between two probes of a node on probation: two of them take a second, a live link answers in far less."""

    # attempts
    offer_ms_max: int = 10 * SECOND_MS
    """An offer unanswered this long goes elsewhere."""
    resend_ms: int = 2 * SECOND_MS
    """A command whose effect is not reported by then is sent again."""
    prepare_ms_max: int = 15 * MINUTE_MS
    """A large image over a home line; longer than that and another node is the better bet."""
    run_ms_max: int = 7 * DAY_MS
    """For jobs without a time limit of their own: no state is unbounded."""
    run_slack_ms: int = 30 * SECOND_MS
    """The node stops a job at its limit; the orchestrator steps in this much later."""
    upload_ms_max: int = 15 * MINUTE_MS
    """Both logs at their size limit over 1.2 Mbit/s."""
    stop_grace_ms: int = 5 * SECOND_MS
    """Between SIGTERM and SIGKILL."""
    attempts_max: int = 6
    """Enough for a flaky fleet; few enough that a broken job ends the same day."""
    lasting_ms: int = 10 * MINUTE_MS
    """A body that ran on for this long got somewhere: takeovers before that are forgiven, so a job of a week may change
    machines every day. Work that never lasts so long anywhere still ends after a few dozen attempts."""
    backoff_ms: int = 500
    """First wait before the next attempt; doubles. A takeover does not wait."""
    backoff_ms_max: int = 60 * SECOND_MS
    """Nobody looks at a failing job more often than once a minute, so waiting longer gains nothing."""
    poison_nodes: int = 3
    """So many different machines felled with the same job running is no chance."""
    lease_ms: int = 15 * SECOND_MS
    """Class `never`: the body stops itself at 0.9 of this, the orchestrator waits 1.1 of it."""
    orphan_ms_max: int = 1 * HOUR_MS
    """Work cut off from the orchestrator goes on for this long, then stops itself."""
    drain_ms: int = 60 * SECOND_MS
    """What runs on a draining node may finish within this; then it is taken over."""
    save_ms_max: int = 20 * SECOND_MS
    """A job on a drained machine may take this long for its last checkpoint: some gigabytes over a home line do not
    fit, but then the one before is not long ago."""

    # stragglers
    stall_ms: int = 10 * MINUTE_MS
    """A body that neither prints nor computes for this long is flagged. Waiting for something outside takes minutes at
    times; a second attempt costs idle room only, so a false alarm is cheap, but it should be rare."""
    slow_factor: int = 3
    """A body that runs for so many times what its peers took is flagged: a slow machine rarely is slower than this by
    itself, and the time that is lost at most is not more than the rest would have taken."""
    slow_peers_min: int = 4
    """So many peers must have ended before their median means anything."""
    slow_ms_min: int = 2 * MINUTE_MS
    """What is over sooner is not worth a second attempt."""
    seconds_max: int = 2
    """Attempts beside a straggler, in a job's life: one may be lost with its machine, more is a job that always looks
    like this."""

    # joining
    open_join: bool = False
    """True: anyone may join without a token. The network operator's choice, never a default."""

    # queue
    queue_ms_max: int = 1 * DAY_MS
    """For jobs that name no limit: a day, so that what waits for a nightly machine still finds it."""
    reserve_ms: int = 60 * SECOND_MS
    """A job that heads its owner's line this long is too large for the room that appears: a machine is held for it.
    Most waits on a busy network are shorter, and a held machine earns less."""
    reserved_share_max_permille: int = 100
    """Machines held at a time, of those in service; but always one."""
    owner_live_jobs_max: int = 100_000
    """Jobs of one owner that are not ended; bounds memory, not fairness."""
    live_jobs_max: int = 1_000_000
    """All owners together: every live job is in memory."""

    # placement
    candidates: int = 2
    """Nodes compared per decision: the better of two random ones avoids most of the imbalance; more cost time."""
    attempts_per_node_max: int = 256
    """Bounds a report to one message."""

    # files
    files_keep_ms: int = 30 * DAY_MS
    """What an ended job was given and made, while its owner has not said that it arrived: long enough for a holiday."""
    files_keep_received_ms: int = 1 * DAY_MS
    """Once it arrived: until the next day, so that it can be run again or fetched to a second place."""

    logs_keep_ms: int = 30 * DAY_MS
    """What an ended job printed: as long as its files. Time in which no orchestrator served does not count."""

    # limits
    log_bytes_max: int = 64 * 1024 * 1024
    """Per attempt and stream; what is cut is said."""
    argv_bytes_max: int = 32 * 1024
    """Half a message, so that the rest of the order has room beside it."""

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
        """Homes and mobile links: more jitter, slower recovery of a link, the same bound on a freeze."""
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
        """Everything that waits, waits little; nothing is switched off."""
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
        )

    @staticmethod
    def preset(name: str) -> "Settings":
        presets = {"lan": Settings.lan, "wan": Settings.wan, "test": Settings.test}
        if name not in presets:
            raise ValueError(f"no preset is called {name!r}; there are {', '.join(presets)}")
        return presets[name]()
