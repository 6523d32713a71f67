"""Limits: every bound of the engine in one frozen value, unit in the name, reason beside it.

Nothing in the engine waits, queues or buffers without a line here.
"""

from typing import Any

import attrs

from protocol.dialects import Dialect

MIB = 1024 * 1024


_positive: Any = attrs.validators.gt(0)
_at_least_zero: Any = attrs.validators.ge(0)


@attrs.frozen(kw_only=True)
class Limits:
    """All bounds; a wrong value raises `ValueError` that names the field."""

    # --- suspension -------------------------------------------------------------------------------------------
    suspend_timeout_seconds: float = attrs.field(default=600.0, validator=_at_least_zero)
    """Append form: how long a suspended rollout waits for its outputs (reference 3.5 rule 11). 0 = for ever."""
    inject_grace_seconds: float = attrs.field(default=30.0, validator=_at_least_zero)
    """Inject form: from the suspension or the last accepted output (reference 5B.2 rule 5). 0 = complete at once."""
    max_open_rollouts: int = attrs.field(default=20_000, validator=_positive)
    """Rollouts of the server, nearly all of them suspended; at about 10 kB each this is 200 MB. More get a 503."""
    max_open_rollouts_per_key: int = attrs.field(default=5_000, validator=_positive)
    """The same of one key, over WebSocket; more get a 429. So one key cannot fill the server. Without keys no such limit."""
    hosted_tool_timeout_seconds: float = attrs.field(default=60.0, validator=_positive)
    """A tool of the server's that takes longer fails; the rollout goes on."""
    max_hosted_output_bytes: int = attrs.field(default=MIB, validator=_positive)
    """A hosted tool that answers more fails with a short error (reference 8A)."""

    # --- work -------------------------------------------------------------------------------------------------
    sampler_slots: int = attrs.field(default=256, validator=_positive)
    """Segments that sample at once; a suspended rollout holds no slot."""
    kv_tokens: int = attrs.field(default=0, validator=_at_least_zero)
    """State that each model keeps of all its rollouts, in tokens; more is given up by the policy and computed again.

    0 = as much as the model says it has, and else no bound."""
    max_saved_kv_tokens: int = attrs.field(default=64 * 1024, validator=_at_least_zero)
    """State of each model that is written away, where its backend can; at 23 kB a token (SmolLM2) this is 1.5 GB."""
    max_learned_tools: int = attrs.field(default=1024, validator=_positive)
    """Tools whose durations each model's policy remembers, about 4 kB each; the least recently used goes first."""
    tick_seconds: float = attrs.field(default=0.008, validator=_positive)
    """Engine step of the simulated models: all streams are woken together (performance: one wake per step)."""
    work_slice_bytes: int = attrs.field(default=64 * 1024, validator=_positive)
    """Rendering and classifying yield to other rollouts after so much text."""
    max_context_bytes: int = attrs.field(default=256 * MIB, validator=_positive)
    """Items and tokens of one rollout's context, and of all responses together that a connection remembers."""
    max_schemas: int = attrs.field(default=1024, validator=_at_least_zero)
    """Schemas of tools that were found right and need not be checked again; the least recently used goes first. 0 = none."""
    max_model_names: int = attrs.field(default=256, validator=_at_least_zero)
    """Names that were found in the model table: they are the client's, and one with a wildcard serves endlessly many. 0 = none."""
    max_shared_entries: int = attrs.field(default=64, validator=_at_least_zero)
    """Lists of tools that are kept once for all rollouts that say the same, and as many instructions; the least recently used goes first. 0 = none."""
    max_shared_bytes: int = attrs.field(default=MIB, validator=_positive)
    """Those lists as JSON, and as much again of instructions; in memory a list takes about five times its text."""
    cleanup_seconds: float = attrs.field(default=5.0, validator=_positive)
    """Bound of every shielded clean-up: post-inference of a cut rollout, closing a sampler."""

    # --- queues -----------------------------------------------------------------------------------------------
    max_queued_creates: int = attrs.field(default=64, validator=_positive)
    """Creates of one connection that wait for their lane (reference 4.5); more get a typed error."""
    max_queued_create_bytes: int = attrs.field(default=64 * MIB, validator=_positive)
    """The same in bytes of their frames."""
    max_in_flight: int = attrs.field(default=16, validator=_positive)
    """Responses of one connection that sample at once (reference 4.5); suspended ones do not count."""
    max_lanes: int = attrs.field(default=32, validator=_positive)
    """Named lanes of one connection (reference 4.5)."""
    max_pending_steers: int = attrs.field(default=32, validator=_positive)
    """Steers of one response that wait for its successor (reference 4.7)."""
    max_ended_responses: int = attrs.field(default=128, validator=_positive)
    """Ended ids a connection remembers, to refuse late injects by name (reference 5B.2 rule 6)."""
    max_held_outputs: int = attrs.field(default=4096, validator=_positive)
    """Messages and outputs accepted but not yet in the context, per rollout."""
    outbox_high_water_bytes: int = attrs.field(default=64 * 1024, validator=_positive)
    """Above this a connection's rollouts wait for its client; 64 KiB measured well."""
    max_outbox_bytes: int = attrs.field(default=40 * MIB, validator=_positive)
    """A connection that has more unsent bytes than this when one more message is queued is closed with 1011 (reference 1.3).

    Its client does not read: a response begins by echoing its create twice, and that may be `max_message_bytes` long, so
    8 MiB more than both. One message may be larger: the last event of a response repeats all that it said."""

    # --- store ------------------------------------------------------------------------------------------------
    max_stored_responses: int = attrs.field(default=1024, validator=_positive)
    """Of the store in memory, which is there without a file; the least recently used goes first."""
    max_stored_bytes: int = attrs.field(default=64 * MIB, validator=_positive)
    """The same in bytes of their resources, which repeat all output."""
    max_usage_rows: int = attrs.field(default=65_536, validator=_positive)
    """Of the store in memory; the oldest go first."""
    max_queued_store_jobs: int = attrs.field(default=1024, validator=_positive)
    """Reads and writes that wait for the store's thread, and the most in one transaction; more wait for a place."""
    max_store_cache_bytes: int = attrs.field(default=64 * MIB, validator=_at_least_zero)
    """Contexts the store remembers, by their size in its file; a turn whose parent is not among them reads it again."""
    max_wal_bytes: int = attrs.field(default=64 * MIB, validator=_positive)
    """The store's log is folded into its file when it is this long, in the middle of the work; so rather long."""
    store_idle_seconds: float = attrs.field(default=1.0, validator=_positive)
    """With nothing to do for so long, the store folds its log, which makes nobody wait then."""
    store_busy_seconds: float = attrs.field(default=2.0, validator=_positive)
    """How long the store waits for another process that writes to its file; then a typed error."""

    max_kept_event_bytes: int = attrs.field(default=MIB, validator=_positive)
    """Events of one stored HTTP response that can be sent again (reference 10.3); the oldest go first."""
    max_kept_responses: int = attrs.field(default=64, validator=_positive)
    """Ended HTTP responses whose events are still kept."""
    max_prefixes: int = attrs.field(default=1024, validator=_positive)
    """Contexts that the optimised HTTP variant remembers between requests."""
    max_prefix_bytes: int = attrs.field(default=256 * MIB, validator=_positive)
    """The same in bytes of items and tokens."""

    # --- frames -----------------------------------------------------------------------------------------------
    max_message_bytes: int = attrs.field(default=16 * MIB, validator=_positive)
    """One inbound message, in bytes and not in characters; more closes with 1009."""
    max_head_bytes: int = attrs.field(default=16 * 1024, validator=_positive)
    """A request's line and headers, over HTTP and of an upgrade; more is refused with 431."""
    max_fragments: int = attrs.field(default=64, validator=_positive)
    """Per message; empty fragments count, they are the cheap way to fill memory."""
    max_frames_per_second: int = attrs.field(default=1000, validator=_positive)
    """Every inbound frame counts, control frames too; more closes with 1008."""
    receive_buffer_bytes: int = attrs.field(default=64 * 1024, validator=_positive)
    """One read of the socket; at 4 KiB a large frame costs twice the time."""

    # --- connections ------------------------------------------------------------------------------------------
    max_connections: int = attrs.field(default=2048, validator=_positive)
    """Connections of the server, handshakes included; more are refused with 429."""
    max_connections_per_key: int = attrs.field(default=256, validator=_positive)
    """Connections of one key, over WebSocket and HTTP; more are refused with 429 (reference 4.7). Without keys no such limit."""
    max_connection_seconds: float = attrs.field(default=3600.0, validator=_positive)
    """A WebSocket connection that is older refuses new creates and is closed with 1001 (reference 4.7)."""
    age_grace_seconds: float = attrs.field(default=60.0, validator=_at_least_zero)
    """How long what samples at that age may go on (reference 4.7)."""
    handshake_timeout_seconds: float = attrs.field(default=5.0, validator=_positive)
    """From the accepted socket to the whole upgrade request."""
    ping_interval_seconds: float = attrs.field(default=30.0, validator=_positive)
    pong_timeout_seconds: float = attrs.field(default=90.0, validator=_positive)
    """A ping without any answer for so long closes with 1011: 30 s + 90 s = the 120 s of reference 1.3."""
    send_timeout_seconds: float = attrs.field(default=10.0, validator=_positive)
    """A write that moves no byte for so long closes the connection with 1011 (reference 1.3)."""
    close_timeout_seconds: float = attrs.field(default=2.0, validator=_positive)
    """How long a closing handshake may take before the socket is dropped."""
    keep_alive_seconds: float = attrs.field(default=75.0, validator=_positive)
    """An HTTP connection that sends no further request for so long is closed; longer than clients keep theirs."""
    body_timeout_seconds: float = attrs.field(default=30.0, validator=_positive)
    """From an HTTP request's head to the end of its body; then 408."""
    sse_ping_seconds: float = attrs.field(default=15.0, validator=_positive)
    """A comment goes out after so long without an event: proxies cut silent streams at 60 s (reference 10.2)."""
    drain_seconds: float = attrs.field(default=30.0, validator=_positive)
    """On SIGTERM: how long sampling rollouts may go on (reference 2.7)."""

    # --- the client -------------------------------------------------------------------------------------------
    max_unread_events: int = attrs.field(default=1024, validator=_positive)
    """Of a rollout that nobody iterates over: then its connection is not read on; tools still run meanwhile."""
    max_refusal_bytes: int = attrs.field(default=MIB, validator=_positive)
    """Of an HTTP answer that is no stream the beginning is read."""


DEFAULT_LIMITS = Limits()


def patience_seconds(limits: Limits, dialect: Dialect) -> float:
    """How long a suspended rollout of this dialect waits; infinite where 0 means for ever."""
    seconds: float = getattr(limits, dialect.deadline) if dialect.deadline is not None else 0.0
    return float("inf") if seconds == 0 and dialect.zero_waits_for_ever else seconds
