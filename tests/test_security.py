"""The security list: each of its ids is a test, here or where the thing itself is tested.

One line a proof, `file: test`; a test below reads this table.

    T1   foreign, null and no origin       server_door: key_and_origin_decide_before_the_upgrade
                                           http: key_and_origin_are_asked_as_at_the_upgrade
    T2   no key, wrong key, key in URL     server_door: key_and_origin_decide_before_the_upgrade
                                           server_door: a_key_in_the_query_is_ignored
                                           http: key_and_origin_are_asked_as_at_the_upgrade
                                           security: t02_every_key_is_compared_in_constant_time
    T3   token as subprotocol              security: t03_a_token_offered_as_subprotocol_is_no_key
                                           security: t03_a_token_offered_beside_a_key_is_written_nowhere
    T4   key revoked while connected       security: t04_a_revoked_key_starts_and_brings_nothing
                                           security: t04_without_its_last_key_a_server_is_closed_to_all
                                           security: t04_a_revoked_key_is_refused_over_http
    T5   a byte over the limit, the limit  transport: bad_input_closes_with_its_code
                                           transport: exactly_the_limit_is_received
                                           frames: limits
                                           http: a_large_body_is_refused
                                           http: a_body_of_exactly_the_limit_is_read
    T6   floods of fragments               transport: bad_input_closes_with_its_code
                                           security_floods: t06_fragments_fill_no_memory
    T7   floods of pings and frames        transport: bad_input_closes_with_its_code
                                           security_floods: t07_a_flood_of_frames_costs_the_same_however_long_it_is
    T8   compression offered, RSV1         server_door: nothing_is_negotiated
                                           transport: bad_input_closes_with_its_code
    T9   slow handshake, body, no pong     transport: a_slow_handshake_is_cut_off
                                           http: a_slow_body_is_cut_off
                                           transport: a_silent_peer_is_closed_with_1011
    T10  reader that stalls in mid-stream  transport: a_stalled_peer_is_1011
                                           transport: an_overflow_is_1011
                                           security_floods: t10_a_stalled_reader_is_cut_and_nobody_else_notices
    T11  peer that answers no close        transport: a_peer_that_never_answers_a_close
    T12  exception in one handler          server_door: a_crash_ends_its_own_connection_only
                                           server_door: a_crash_in_reading_ends_its_own_connection_only
                                           http: a_crash_is_answered_and_ends_its_connection_only
    T13  limits                            server_door: only_so_many_connections_are_open_at_once
                                           server_door: unfinished_handshakes_count_as_connections
                                           http: http_connections_take_places
                                           refusals: a_refusal_has_its_type_and_changes_nothing
                                           refusals: a_full_queue_refuses_creates_and_nothing_else
                                           refusals: a_server_with_too_many_rollouts_refuses_creates
                                           refusals: more_than_may_be_held_is_refused
                                           http: a_full_server_refuses
                                           security: t13_a_key_has_so_many_connections
                                           security: t13_a_key_has_so_many_suspended_responses
                                           security: t13_without_keys_only_the_server_is_bounded
                                           create_lanes: a_connection_has_thirty_two_named_lanes_for_its_whole_life
                                           security_floods: t13_more_than_sixteen_at_once_wait
    T14  10,000 responses                  security_floods: t14_ten_thousand_responses_leave_the_latest_of_each_lane
    T15  10,000 tools and schemas          security_floods: t15_ten_thousand_tools_leave_bounded_caches
    T16  hostile JSON, binary frame        refusals: a_refusal_has_its_type_and_changes_nothing
                                           codec: any_text_is_an_event_or_refused
                                           transport: bad_input_closes_with_its_code
                                           security_text: t16_what_is_no_json_object_is_refused_in_both_transports
                                           security_text: t16_what_is_odd_but_json_is_read
    T17  surrogates, joiners, directions   refusals: a_refusal_has_its_type_and_changes_nothing
                                           security_text: t17_writing_of_any_kind_round_trips
    T18  special tokens in every text      context: text_never_adds_or_removes_a_marker
                                           context: every_special_token_cut_at_every_position_stays_text
                                           context: a_calls_fields_stand_alone_between_markers
                                           vocabulary: encoded_text_decodes_to_itself_without_special_ids
                                           vocabulary: no_spelling_of_a_control_token_becomes_one
    T19  the model spells a special token  security_text: t19_what_the_model_spells_stays_text_on_the_next_turn
    T20  another key's ids                 http: another_key_sees_what_a_stranger_sees
                                           store: a_foreign_id_answers_like_a_random_one
                                           store: somebody_elses_response_is_no_parent
                                           security_text: t20_a_foreign_id_is_answered_like_a_random_one
                                           security_text: t20_ids_are_random_and_have_no_order
                                           security_text: t20_a_forked_process_draws_ids_of_its_own
    T21  forged members, roles, lanes      refusals: messages_are_refused_where_the_form_has_none
                                           security_text: t21_unknown_members_are_ignored
                                           security_text: t21_an_append_puts_nothing_into_the_models_mouth
                                           security_text: t21_a_system_message_in_an_append_is_a_message
                                           security_text: t21_a_foreign_lane_is_no_way_in
    T22  10,000 bad appends                security_floods: t22_ten_thousand_bad_outputs_have_one_answer_each
    T23  call ids of 1 MB, of controls     codec: a_call_id_is_short_and_printable
                                           refusals: a_refusal_has_its_type_and_changes_nothing
    T24  a canary secret                   security_text: t24_a_secret_is_found_only_where_it_is_documented
                                           store: only_its_owner_reads_the_file
    T25  CR, LF, ANSI in a log             server_door: text_from_outside_is_printable_in_a_log
                                           server_door: a_failed_handshake_is_one_printable_line
    T26  errors of every kind              security_text: t26_no_line_of_the_catalogue_names_the_inside
                                           security_text: t26_no_refusal_names_the_inside
                                           security_text: t26_a_crash_says_nothing_of_itself
                                           security_text: t26_an_answer_to_no_request_names_no_parser
    T28  a torn log                        store: a_torn_log_is_read_up_to_its_last_whole_transaction_and_that_is_said
                                           torn_log: what_an_older_log_left_in_the_file_is_not_torn
    T30  quadratic traps                   growth: a_large_output_costs_work_in_proportion
                                           vocabulary: four_mebibytes_of_one_character_are_cut_into_equal_small_pieces
                                           security_floods: t30_work_grows_with_the_size
                                           security_floods: t30_reading_hostile_text_is_linear
    T31  without options, without a key    server_door: by_default_it_binds_loopback
                                           server_door: a_public_address_needs_a_key
"""

import ast
import hmac
import logging
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from engine.config import Limits
from engine.samplers.scripted import END, Scripted, call, say
from engine.testing import MemoryTrace, RawClient, serving, simulate, simulated_engine
from engine.transport import HandshakeRejected
from tests.http_peer import HttpPeer
from tests.scenarios import FUNCTION, Talk, wait_idle
from tests.wire import WirePeer

LISTED = {f"T{number}" for number in (*range(1, 27), 28, 30, 31)}
PROOF = re.compile(r"^ +(T\d+)?.*?  +(\w+): (\w+)$", re.MULTILINE)
KEY, OTHER_KEY = "sk-here", "sk-there"
TOKEN = "t0ken-of-a-browser"
OFFERED = f"realtime, openai-insecure-api-key.{TOKEN}"


# --- the table -----------------------------------------------------------------------------------------------------


def proofs() -> Iterator[tuple[str, str, str]]:
    """Id, file and test of each line of the table above."""
    current = ""
    for found in PROOF.finditer(__doc__):
        current = found[1] or current
        yield current, f"test_{found[2]}.py", f"test_{found[3]}"


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((Path(__file__).parent / file).read_bytes())
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_every_id_has_a_proof() -> None:
    """No id of the list is missing, and none is here that is not of it."""
    assert LISTED == {listed for listed, _, _ in proofs()}


@pytest.mark.parametrize(("listed", "file", "test"), [*proofs()], ids=lambda text: text)
def test_every_proof_is_a_test(listed: str, file: str, test: str) -> None:
    """Each line of the table names a test that is there; one that has a number has that of its line."""
    assert test in names_in(file)
    numbered = re.match(r"test_t(\d\d)_", test)
    assert numbered is None or f"T{int(numbered[1])}" == listed


def test_every_numbered_test_is_in_the_table() -> None:
    """What was written for the list is listed."""
    files = ("test_security.py", "test_security_text.py", "test_security_floods.py")
    numbered = {(file, test) for file in files for test in names_in(file) if re.match(r"test_t\d\d_", test)}
    assert set() == numbered - {(file, test) for _, file, test in proofs()}


# --- keys ----------------------------------------------------------------------------------------------------------

SCRIPT = [[call("f"), END], [*say("Thanks."), END]]


def bearer(key: str) -> list[tuple[str, str]]:
    return [("Authorization", f"Bearer {key}")]


def run(program: Any, *, key: Any = KEY, trace: Any = None, **parts: Any) -> None:
    """Run a program, which is given the server, in virtual time."""

    async def scenario() -> None:
        engine = simulated_engine(Scripted(SCRIPT), seed=1, **parts)
        async with serving(engine, key=key, trace=trace) as served:
            await program(served)

    simulate(scenario, seed=1)


@pytest.mark.parametrize("shown", [KEY, OTHER_KEY, "wrong", KEY[:-1], KEY + "x"])
def test_t02_every_key_is_compared_in_constant_time(shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is shown, right or wrong, it is compared with all keys, whole, by the comparison made for it."""
    compared: list[bytes] = []

    def compare_digest(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return original(one, other)

    original = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", compare_digest)

    async def program(served: Any) -> None:
        http = HttpPeer(await served.open_stream(), bearer(shown))
        expected = 200 if shown in {KEY, OTHER_KEY} else 401
        assert expected == (await http.ask("GET", "/v1/models")).status

    run(program, key=(KEY, OTHER_KEY))

    assert [f"Bearer {key}".encode() for key in (KEY, OTHER_KEY)] == compared


def test_t03_a_token_offered_as_subprotocol_is_no_key(caplog: pytest.LogCaptureFixture) -> None:
    """Tokens of browsers are not taken, the right key neither: 401, and it is in no answer and no log."""
    caplog.set_level(logging.DEBUG)

    async def program(served: Any) -> None:
        peer = WirePeer(await served.open_stream())
        head = await peer.upgrade(f"Sec-WebSocket-Protocol: {OFFERED}\r\n".encode())
        assert head.startswith(b"HTTP/1.1 401 ")
        assert TOKEN not in head.decode() + str(await peer.stream.receive_some())

    run(program, key=TOKEN)

    assert TOKEN not in caplog.text


def test_t03_a_token_offered_beside_a_key_is_written_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    """Who shows a key gets a plain 101 without a subprotocol; the token is in no header, log or trace."""
    caplog.set_level(logging.DEBUG)
    trace = MemoryTrace()

    async def program(served: Any) -> None:
        headers = [*bearer(KEY), ("Sec-WebSocket-Protocol", OFFERED)]
        async with served.connect_raw(headers=headers) as raw:
            told = raw.transport.answer_headers
            assert "sec-websocket-protocol" not in dict(told)
            assert TOKEN not in str(told)
            talk = Talk(raw, "append", served)
            talk.create()
            await talk.until_suspended(1)
            talk.answer(0)
            await talk.until_ended()

    run(program, trace=trace)

    assert len(trace.lines()) > 10
    assert TOKEN not in caplog.text + str(trace.lines())


@pytest.mark.parametrize("kind", ["create", "append", "inject", "steer"])
def test_t04_a_revoked_key_starts_and_brings_nothing(kind: str) -> None:
    """Its next frame is refused on its lane, the connection stays; who has another key goes on."""

    async def suspended(raw: RawClient, served: Any, form: str) -> Talk:
        talk = Talk(raw, form, served)
        talk.create(tools=[FUNCTION], stream_id="lane")
        await talk.until_suspended(1)
        return talk

    async def program(served: Any) -> None:
        append = kind != "inject"
        form = "append" if append else "inject"
        async with (
            served.connect_raw(headers=bearer(KEY), append=append) as raw,
            served.connect_raw(headers=bearer(OTHER_KEY)) as other,
        ):
            talk, others = await suspended(raw, served, form), await suspended(other, served, "append")
            served.server.doorkeeper.revoke(KEY)
            steer = {"type": "response.steer", "previous_response_id": talk.response_ids[0], "input": "x"}
            frames: dict[str, Any] = {
                "create": lambda: talk.create("more", stream_id="lane"),
                "append": lambda: talk.answer(0, stream_id="lane"),
                "inject": lambda: talk.answer(0),
                "steer": lambda: raw.send(steer),
            }
            for _ in range(2):
                frames[kind]()
                frame = await talk.next()
                assert ("error", 401) == (frame["type"], frame["status"])
                assert "invalid_api_key" == frame["error"]["code"]
                assert ("lane" if kind in {"create", "append"} else None) == frame.get("stream_id")
            others.answer(0, stream_id="lane")
            assert "completed" == (await others.until_ended())["response"]["status"]
            with pytest.raises(HandshakeRejected, match="status 401"):
                async with served.connect_raw(headers=bearer(KEY)):
                    pytest.fail("the key was revoked")

    run(program, key=(KEY, OTHER_KEY))


def test_t04_a_revoked_key_is_refused_over_http() -> None:
    """On a connection that is kept alive, the request after the revocation is 401; a key that never was is no matter."""

    async def program(served: Any) -> None:
        http = HttpPeer(await served.open_stream(), bearer(KEY))
        assert 200 == (await http.create()).status
        served.server.doorkeeper.revoke("sk-that-never-was")
        assert 200 == (await http.create()).status
        served.server.doorkeeper.revoke(KEY)
        answer = await http.create()
        assert (401, "invalid_api_key") == (answer.status, answer.error["code"])

    run(program, key=(KEY, OTHER_KEY))


def test_t04_without_its_last_key_a_server_is_closed_to_all() -> None:
    """Revoking the only key does not make it a server without keys, which anybody on the machine may use."""

    async def program(served: Any) -> None:
        served.server.doorkeeper.revoke(KEY)
        for headers in (bearer(KEY), []):
            assert 401 == (await HttpPeer(await served.open_stream(), headers).create()).status

    run(program)


def test_t13_a_key_has_so_many_connections() -> None:
    """One more is refused with 429 before the upgrade, while another key comes in; one that has gone makes room."""

    async def program(served: Any) -> None:
        def connect(key: str) -> Any:
            return served.connect_raw(headers=bearer(key))

        async with connect(KEY):
            async with connect(KEY), connect(OTHER_KEY):
                with pytest.raises(HandshakeRejected, match="status 429"):
                    async with connect(KEY):
                        pytest.fail("one too many")
            async with connect(KEY):
                pass

    run(program, key=(KEY, OTHER_KEY), limits=Limits(max_connections_per_key=2))


@pytest.mark.parametrize("append", [True, False], ids=["append", "inject"])
def test_t13_a_key_has_so_many_suspended_responses(*, append: bool) -> None:
    """One more create is refused with a typed 429, on any connection of the key; another key's is not; one that ends makes room."""
    form = "append" if append else "inject"

    async def suspended(raw: RawClient, served: Any, lane: str) -> Talk:
        talk = Talk(raw, form, served)
        talk.create(tools=[FUNCTION], stream_id=lane)
        await talk.until_suspended(1)
        return talk

    async def refused(talk: Talk) -> None:
        talk.create(tools=[FUNCTION], stream_id="b")
        frame = await talk.next()
        expected = {"type": "too_many_requests", "code": "rate_limit_exceeded", "param": None}
        assert (429, "b") == (frame["status"], frame["stream_id"])
        assert expected == {name: frame["error"][name] for name in expected}

    async def program(served: Any) -> None:
        def connect(key: str) -> Any:
            return served.connect_raw(append=append, headers=bearer(key))

        async with connect(KEY) as raw, connect(KEY) as second, connect(OTHER_KEY) as other:
            first = await suspended(raw, served, "a")
            await suspended(second, served, "a")
            await refused(first)
            await suspended(other, served, "a")
            first.answer(0, **({"stream_id": "a"} if append else {}))
            await first.until_ended()
            await suspended(raw, served, "b")
        await wait_idle(served)
        assert not served.server.engine.open_by_owner

    run(program, key=(KEY, OTHER_KEY), limits=Limits(max_open_rollouts_per_key=2, inject_grace_seconds=600))


def test_t13_without_keys_only_the_server_is_bounded() -> None:
    """Where nobody has a key, nobody is told apart: more rollouts than a key may have are open at once."""

    async def program(served: Any) -> None:
        async with served.connect_raw() as raw:
            talk = Talk(raw, "append", served)
            for lane in ("a", "b"):
                talk.create(tools=[FUNCTION], stream_id=lane)
                await talk.until_suspended(1)

    run(program, key=None, limits=Limits(max_open_rollouts_per_key=1))
