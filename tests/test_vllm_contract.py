"""`VllmBackend` against answers that a real vLLM gave once (`tests.vllm_tape`), and the imitation of it against the same.

Each test of the first part runs twice, against the recording and against `tests.vllm_peer`: so what the tests of the
imitation show (`tests.test_vllm_backend`) holds for a vLLM as far as these go. The last part compares both in their form.
"""

import re
from typing import Any

import orjson
import pytest

from engine.backends.base import BackendError
from engine.backends.http import BackendHttp
from engine.backends.vllm import VllmBackend
from tests import vllm_scenarios as scenarios
from tests import vllm_tape
from tests.backend_peer import backend_peer
from tests.vllm_peer import VllmServer
from tests.vllm_scenarios import (
    CONTEXT_TOKENS,
    END_TOKEN,
    OTHER_END_TOKEN,
    PROMPT,
    SCENARIOS,
    VOCABULARY,
    collected,
)
from tests.vllm_tape import URL, Tape

SERVERS = {scenario.__name__: server for server, scenario in SCENARIOS}
BLOCK_TOKENS = 128
COLD, WARM = (0, len(PROMPT)), (BLOCK_TOKENS, len(PROMPT) - BLOCK_TOKENS)
NO = [4, 80, 81, 4]
"""`"no"`, by the recorded tokenizer."""


def imitation(name):
    """The server that a scenario was recorded with."""
    return VllmServer(
        says_details=SERVERS[name] != "counts",
        has_tokenizer=SERVERS[name] == "words",
        block_tokens=BLOCK_TOKENS,
        max_tokens=CONTEXT_TOKENS,
        vocabulary=VOCABULARY,
        token_seconds=0.01,
    )


@pytest.fixture(params=["recorded", "imitated"])
def told(request, autojump_clock):
    """What a scenario tells, of the recorded vLLM and of the imitation."""

    async def recorded(scenario):
        tape = Tape(scenario.__name__)
        result = await scenario(tape.http())
        assert (tape.left, [turns for played in tape.played for turns in played.turns]) == ([], [])
        return result

    async def imitated(scenario):
        async with backend_peer(imitation(scenario.__name__).answer) as peer:
            return await scenario(BackendHttp(URL, dialled=peer.dial))

    return {"recorded": recorded, "imitated": imitated}[request.param]


# --- what is made of it --------------------------------------------------------------------------------------------


async def test_cold_and_warm_are_counted_in_blocks(told):
    """The same tokens come again; of the prompt a whole block is found, and what follows it is read."""
    context_tokens, cold, resident, warm, longer = await told(scenarios.cold_and_warm)
    assert (context_tokens, resident) == (CONTEXT_TOKENS, BLOCK_TOKENS)
    assert (len(cold[0]), cold[1:], warm) == (3, (COLD, "length"), (cold[0], WARM, "length"))
    assert longer[1:] == ((BLOCK_TOKENS, len(PROMPT) + 3 + 10 - BLOCK_TOKENS), "length")


async def test_a_salt_parts_the_cache(told):
    """The same key finds what it left; another key, and a handle without a key, find nothing of anybody."""
    assert await told(scenarios.salted) == [COLD, WARM, COLD, COLD, COLD]


async def test_a_stop_token_is_the_last_one(told):
    """Sampling ends with the stop token, which is told."""
    free, stopped = await told(scenarios.stopped)
    assert stopped == (free[:2], (0, 5), "stop")


async def test_a_seed_draws_the_same(told):
    """Two draws with one seed and one prompt are the same."""
    first, second = await told(scenarios.drawn)
    assert (len(first), first) == (2, second)


@pytest.mark.parametrize("how", [scenarios.left, scenarios.left_without_abort])
async def test_what_is_left_is_sampled_no_more(told, how):
    """A stream of 372 tokens that is closed after three: nothing runs, blocks are free, and at most one more was sampled."""
    before, during, soon, later, *_ = await told(how)
    begun = before[2]
    assert (before[:2], during[:2]) == ((0, False), (1, True))
    assert (soon[:2], later) == ((0, False), soon)
    assert begun + 3 <= during[2] <= soon[2] <= begun + 6


async def test_after_an_abort_the_prompt_is_warm(told):
    """What was read for a generation that was left is found by the next one."""
    assert (await told(scenarios.left))[-1][1:] == (WARM, "length")


async def test_the_counters_tell_of_who_is_alone(told):
    """Without counts in the answer those of the page are taken, and none for generations beside each other."""
    after_each_other, (inner, outer), alone = await told(scenarios.counted)
    assert after_each_other == [COLD, WARM]
    assert (inner, set(outer)) == (None, {None})
    assert alone == WARM


async def test_refusals_of_the_engine_and_of_the_front_are_refusals(told):
    """Whether it comes in a stream with status 200 or as status 400, it is `refused`, with vLLM's words."""
    refusals = await told(scenarios.refusals)
    words = ("(length 513) is longer", "(length 512) plus", "temperature must be", "requires a tokenizer")
    assert [reason for reason, _ in refusals] == ["refused"] * 4
    assert [word in message for word, (_, message) in zip(words, refusals, strict=True)] == [True] * 4


async def test_a_malformed_request_is_refused(told):
    """Another model, members that lack, and what is no number or no object: `refused`, with the status."""
    refusals = await told(scenarios.malformed)
    assert [reason for reason, _ in refusals] == ["refused"] * 4
    assert [message.partition("answered ")[2][:3] for _, message in refusals] == ["404", "400", "400", "400"]


async def test_a_schema_ends_with_any_stop_token_or_by_itself(told):
    """The text fits; after it comes a stop token, whichever it is; the tokenizer's own end is left out if it is none."""
    by_end, by_other, by_itself = await told(scenarios.schema)
    assert by_end == ([*NO, END_TOKEN], (0, 5), "stop")
    assert by_other == ([*NO, OTHER_END_TOKEN], (0, 5), "stop")
    assert by_itself == (NO, (0, 5), "stop")


async def test_an_unknown_token_is_refused_where_it_is_checked(told):
    """A server with a tokenizer knows its vocabulary."""
    reason, message = await told(scenarios.unknown_token)
    assert (reason, "Token id 320 is out of vocabulary" in message) == ("refused", True)


async def test_an_unknown_token_ends_a_server_that_does_not_check(told):
    """Its engine dies; whoever asks next gets a status of 500, and that is `died`, too."""
    assert [reason for reason, _ in await told(scenarios.unknown_token_unchecked)] == ["died", "died"]


# --- the recording -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "piece_bytes"),
    [(scenarios.salted, 1), (scenarios.schema, 7), (scenarios.cold_and_warm, 1000)],
)
async def test_answers_may_come_in_any_pieces(autojump_clock, scenario, piece_bytes):
    """Byte by byte or whole, the same is made of them."""
    whole = await scenario(Tape(scenario.__name__).http())
    assert await scenario(Tape(scenario.__name__, piece_bytes=piece_bytes).http()) == whole


def test_the_version_is_told():
    """The recording says of which vLLM it is."""
    assert vllm_tape.version() == "0.32.0"


async def test_the_name_that_is_aborted_is_the_name_of_the_answer():
    """What the backend tells vLLM to abort is what vLLM calls the request."""
    texts = [text for turns in vllm_tape.connections("left") for _, text in turns]
    (aborted,) = (text.partition("request_ids")[2] for text in texts if "abort_requests HTTP" in text)
    (streamed,) = (text for text in texts if text.count('"usage":null') == 3)
    assert set(re.findall(r'"(generate-[^"]+)"', aborted + streamed)) == {f"generate-tokens-{'0' * 16}-1"}


async def test_the_size_of_a_block_is_not_another_label(autojump_clock):
    """On a page that has other sizes, too, the size of a block is that of the prefix cache."""
    tape = Tape(
        "cold_and_warm", lambda text: text.replace('mamba_block_size="None"', 'mamba_block_size="1024"')
    )
    assert (await scenarios.cold_and_warm(tape.http()))[2] == BLOCK_TOKENS


@pytest.mark.parametrize(
    ("replaced", "by", "reason"),
    [
        ('"finish_reason":"stop"', '"finish_reasoN":"stop"', "broke_promise"),
        ('"finish_reason":"stop"', '"finish_reason":"kill"', "died"),
        ('"choices":[{"index":0,"finish_reason":"stop"', '"chances":[{"index":0,"finish_reason":"stop"', "broke_promise"),
        ('"token_ids":[28]', '"token_ids":[-8]', "broke_promise"),
    ],
)  # fmt: skip
async def test_an_altered_answer_is_seen(autojump_clock, replaced, by, reason):
    """A vLLM that named things otherwise, or gave up, would be noticed: the failure is typed."""
    with pytest.raises(BackendError) as caught:
        await scenarios.stopped(Tape("stopped", lambda text: text.replace(replaced, by)).http())
    assert caught.value.reason == reason


# --- the imitation -------------------------------------------------------------------------------------------------


async def imitated_connections(scenario):
    async with backend_peer(imitation(scenario.__name__).answer) as peer:
        return (await vllm_tape.recorded(scenario, peer.dial))[1]


def answered(connections) -> "list[tuple[str, str, str, bytes]]":
    """(request line, status, kind, body) of each answer."""
    answers = []
    for turns in connections:
        for (kind, sent), (_, came) in zip(turns[::2], turns[1::2], strict=True):
            assert kind == "sent"
            head, _, body = came.partition("\r\n\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:])
            chunked = headers.get("transfer-encoding") == "chunked"
            text = "".join(unchunked(body)) if chunked else body
            answers.append(
                (
                    sent.split(" HTTP")[0],
                    head.split(" ", 2)[1],
                    headers.get("content-type") if text else "",
                    text,
                )
            )
    return answers


def unchunked(body):
    while body:
        size, _, rest = body.partition("\r\n")
        yield rest[: int(size, 16)]
        body = rest[int(size, 16) + 2 :]


def form(value: Any, name: str = "") -> Any:
    """Members in their order, with the kinds of their values; of a few the values themselves."""
    if isinstance(value, dict):
        return [(name, form(one, name)) for name, one in value.items()]
    if isinstance(value, list):
        return [form(one) for one in value[:1]]
    told_apart = (
        "code",
        "finish_reason",
        "id",
        "object",
        "output_mode",
        "owned_by",
        "param",
        "type",
        "version",
    )
    return value if name in told_apart and "modelperm" not in str(value) else type(value).__name__


def forms(text):
    """Of the events of a stream, without repetitions, or of one answer."""
    if not text.startswith("data: "):
        return [form(orjson.loads(text))] if text else []
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    if '"error"' in events[0]:
        return [form(orjson.loads(events[0]))]  # nobody reads on
    seen = [event if event == "[DONE]" else form(orjson.loads(event)) for event in events]
    return [one for before, one in zip([None, *seen], seen, strict=False) if one != before]


@pytest.mark.parametrize("scenario", [scenario for _, scenario in SCENARIOS])
async def test_the_imitation_answers_in_vllms_form(autojump_clock, scenario):
    """The same requests get the same statuses, kinds, members in the same order, and events in the same order."""
    recorded = answered(vllm_tape.connections(scenario.__name__))
    imitated = answered(await imitated_connections(scenario))
    assert [answer[:3] for answer in imitated] == [answer[:3] for answer in recorded]
    for (asked, *_, ours), (*_, theirs) in zip(imitated, recorded, strict=True):
        if asked != "GET /metrics":
            assert forms(ours) == forms(theirs), asked


async def test_the_imitations_page_is_part_of_vllms(autojump_clock):
    """Each of its lines is on the recorded page, in the same order, if engines and labels may be fewer there."""
    (ours,) = pages(await imitated_connections(scenarios.cold_and_warm))
    (theirs,) = pages(vllm_tape.connections("cold_and_warm"))
    left = iter(theirs)
    assert [name for name, _ in ours] == [name for name, _ in ours if any(name == there for there, _ in left)]
    labels = dict(theirs)
    assert [name for name, some in ours if not set(some) <= set(labels[name])] == []


def pages(connections):
    """(name, labels) of each line of each page that was given, once."""
    for asked, _, _, text in answered(connections):
        if asked == "GET /metrics":
            lines = re.findall(r"^([a-z_:]+){([^}]*)} \S+$", text, re.MULTILINE)
            yield list({name: re.findall(r"(\w+)=\"", labels) for name, labels in lines}.items())


async def test_a_player_notices_another_request(autojump_clock):
    """What was not sent then is not answered now."""
    backend = VllmBackend(Tape("stopped").http(), reads_metrics=False)
    with pytest.raises(AssertionError, match="another request"):
        await collected(backend, backend.open(), scenarios.PROMPT, max_tokens=3)
    tape = Tape("stopped")
    tape.left.clear()
    with pytest.raises(BackendError, match="nobody listens"):
        await VllmBackend(tape.http()).discover()
