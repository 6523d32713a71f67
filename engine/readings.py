"""What a server holds, as a frozen view, and as the values of `/metrics`."""

from collections.abc import Iterator

import attrs

from engine.connection import ConnectionStatistics
from engine.engine import Engine
from engine.metrics import Reading
from engine.prefix_cache import PrefixStatistics
from engine.residency.statistics import ResidencyStatistics
from engine.scheduler import SlotStatistics


@attrs.frozen
class ServerStatistics:
    """What a server holds."""

    connections: tuple[ConnectionStatistics, ...]
    """Of the WebSocket connections."""
    slots: SlotStatistics
    http_connections: int = 0
    """Open now."""
    http_accepted: int = 0
    """Since the server began."""
    http_requests: int = 0
    """The same; with keep-alive, more than connections."""
    residency: ResidencyStatistics = attrs.field(factory=ResidencyStatistics)
    """Of models whose state is kept within a budget."""


def readings(statistics: ServerStatistics, prefixes: PrefixStatistics, engine: Engine) -> Iterator[Reading]:
    """What `/metrics` shows besides the responses that ended."""
    suspended = sum(connection.suspended for connection in statistics.connections)
    slots = statistics.slots
    yield Reading("rollouts_open", "Responses that have not ended.", engine.open_rollouts)
    yield Reading("rollouts_suspended", "Of these, waiting for their client's tools.", suspended)
    yield Reading("websocket_connections", "Open now.", len(statistics.connections))
    yield Reading("http_connections", "Open now.", statistics.http_connections)
    yield Reading("http_accepted", "HTTP connections since the start.", statistics.http_accepted, counts=True)
    yield Reading("http_requests", "HTTP requests since the start.", statistics.http_requests, counts=True)
    yield Reading("sampler_slots_held", "Segments that sample now.", slots.held)
    yield Reading("sampler_slots_free", "Segments that could.", slots.free)
    yield Reading(
        "sampler_slots_waiting", "Segments that wait for a slot.", slots.waiting_new + slots.waiting_resumed
    )
    yield Reading("sampler_slots_granted", "Segments since the start.", slots.granted, counts=True)
    yield Reading("sampler_slot_wait_seconds_max", "The longest wait for a slot.", slots.longest_wait_seconds)
    yield from _residency_readings(statistics.residency)
    yield Reading("prefixes", "Contexts kept between HTTP requests.", prefixes.prefixes)
    yield Reading("prefix_hits", "HTTP requests that began with one.", prefixes.hits, counts=True)
    yield Reading("prefix_misses", "HTTP requests that did not.", prefixes.misses, counts=True)
    yield Reading("prefix_reused_tokens", "Tokens not rendered again.", prefixes.reused_tokens, counts=True)
    yield Reading("prefix_reused_items", "Items not validated again.", prefixes.reused_items, counts=True)


def _residency_readings(states: ResidencyStatistics) -> Iterator[Reading]:
    """What models keep of rollouts; all zero without a budget."""
    yield Reading("kv_budget_tokens", "State that models may keep.", states.budget_tokens)
    yield Reading("kv_resident_tokens", "State in memory.", states.resident_tokens)
    yield Reading("kv_running_tokens", "Of this, of segments that sample.", states.running_tokens)
    yield Reading("kv_saved_tokens", "State written away.", states.saved_tokens)
    yield Reading("model_slots_free", "Of the models' own slots.", states.slots_free)
    yield Reading("model_slots_waiting", "Segments that wait for one.", states.slots_waiting)
    yield Reading("kv_sequences", "Rollouts, open or warm, that may have state.", states.sequences)
    yield Reading("kv_dropped", "States that were given up.", states.dropped, counts=True)
    yield Reading("kv_saved", "States that were written away.", states.saved, counts=True)
    yield Reading("kv_restored", "States that were brought back.", states.restored, counts=True)
    yield Reading(
        "kv_reused_tokens", "Tokens of prompts that were in memory.", states.reused_tokens, counts=True
    )
    yield Reading(
        "kv_computed_tokens", "Tokens of prompts that were not.", states.computed_tokens, counts=True
    )
    yield Reading("kv_waits", "Segments that waited for others' memory.", states.waits_for_room, counts=True)
    yield Reading("kv_wait_seconds_max", "The longest of these waits.", states.longest_wait_seconds)
