"""protocol.templates: what is filled equals what is made and encoded, byte for byte, number by number."""

from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.open_items import MAKES
from protocol import codec, events
from protocol.codec import STREAM_ID
from protocol.dialects import APPEND, DIALECTS, HTTP, Dialect
from protocol.errors import LocalProtocolError
from protocol.events import DELTA_CLASSES
from protocol.items import Agent
from protocol.record import Record
from protocol.templates import Template, fill_pieces, template_of
from tests import strategies as wire

texts = wire.texts | st.sampled_from(["%", "%%b", "%(id)b", "\x02id", "\x020", '"', "4503599627370497"])
values = st.tuples(wire.ids | st.sampled_from(["100%", "%d", '"\\', "msg_4503599627370497"]), wire.indexes)
pieces = st.lists(texts.filter(bool), max_size=3)
MARKS = ("4503599627370497", "4503599627370498")
"""What stands for an index and a number while a template is made; a client may call its lane so."""
lanes = (
    st.none()
    | st.sampled_from(["lane-1", *MARKS, f"x-{MARKS[1]}.{MARKS[0]}"])
    | st.from_regex(STREAM_ID, fullmatch=True)
)


def begun(dialect: Dialect, stream_id: str | None = None) -> Record:
    """A response whose `created` was sent."""
    record = Record("resp_1", dialect, stream_id)
    record.send(events.ResponseCreated(events.Response("resp_1", 1, "m")))
    return record


# --- what the engine makes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKES)
@given(dialect=st.sampled_from(list(DIALECTS.values())), lane=lanes, at=values, data=st.data())
def test_frames_of_an_item_are_those_of_its_events(
    name: str, dialect: Dialect, lane: str | None, at: tuple[str, int], data: st.DataObject
) -> None:
    """Whatever the engine opens or closes an item with: as one event after the other, in each form and lane."""
    make, counts = MAKES[name]
    said = data.draw(
        st.lists(texts, min_size=min(counts), max_size=max(counts)).filter(lambda s: len(s) in counts)
    )
    plainly, filled = begun(dialect, lane), begun(dialect, lane)
    made: list[Any] = list(make(dialect.agent, *at, *said))
    expected = []
    if isinstance(made[-1], DELTA_CLASSES):
        written = data.draw(pieces)
        kinds, frames, write = filled.open(make, *at, *said)
        frames = [*frames, *write(written)]
        delta = made.pop()
        assert delta.type == kinds[-1]
        made += [attrs.evolve(delta, delta=piece) for piece in written]
    else:
        kinds, frames = filled.send_made(make, *at, *said)
        assert [event.type for event in made] == list(kinds)
    expected = [plainly.send(event) for event in made]
    assert expected == frames
    assert (plainly.next_number, plainly.state) == (filled.next_number, filled.state)


# --- any ------------------------------------------------------------------------------------------------------------


@given(
    wire.deltas,
    st.lists(texts, max_size=3),
    st.integers(0, 2**53),
    values,
    lanes,
    st.none() | st.just(Agent()),
)
@example(
    events.OutputTextDelta("", 0, 0, "", ({"%d": "%"},)), ["%b %"], 3, ("100%", 0), "a", Agent("%(index)d")
)
def test_a_template_is_the_plain_encoding(
    event: Any, said: list[str], number: int, at: tuple[str, int], lane: str | None, agent: Agent | None
) -> None:
    """For every delta, whatever comes before and after its piece."""
    template = Template(lambda _agent, item_id, index: (at_place(event, item_id, index),), 0, agent)
    extras = codec.extras_of(agent, lane)
    plainly = [
        codec.encode(
            attrs.evolve(at_place(event, *at), delta=piece), {"sequence_number": number + count, **extras}
        )
        for count, piece in enumerate(said)
    ]
    assert plainly == fill_pieces(template.delta(*at, lane), said, number)


def at_place(event: Any, item_id: str, index: int) -> Any:
    return attrs.evolve(event, item_id=item_id, output_index=index)


@pytest.mark.parametrize("name", MAKES)
def test_nothing_is_filled_where_its_events_would_be_refused(name: str) -> None:
    """After the end nothing is sent and no number is taken; the words are those of the event."""
    make, counts = MAKES[name]
    record = begun(HTTP)
    record.send(events.ResponseFailed(events.Response("resp_1", 0, "m")))
    number, said = record.next_number, [""] * max(counts)
    with pytest.raises(LocalProtocolError) as plainly:
        record.send(make(None, "id", 0, *said)[0])
    fill = record.open if isinstance(make(None, "id", 0, *said)[-1], DELTA_CLASSES) else record.send_made
    with pytest.raises(LocalProtocolError) as filled:
        fill(make, "id", 0, *said)
    assert str(plainly.value) == str(filled.value)
    assert number == record.next_number


@pytest.mark.parametrize("name", [name for name, (_, counts) in MAKES.items() if max(counts)])
def test_of_a_text_with_half_a_character_nothing_is_sent(name: str) -> None:
    """As if nothing had been: no number is burnt."""
    make, counts = MAKES[name]
    record = begun(APPEND)
    number = record.next_number
    fill = record.open if name.endswith("opening") else record.send_made
    with pytest.raises(TypeError):
        fill(make, "id", 0, *["\ud800"] * max(counts))
    assert number == record.next_number


def test_a_lane_of_a_clients_choice_makes_no_template() -> None:
    """However many there are, nothing is kept of them."""
    make, counts = MAKES["message closing"]
    before = template_of.cache_info().currsize
    for number in range(10):
        begun(APPEND, f"another-lane-{number}").send_made(make, "id", 0, *[""] * max(counts))
    assert before + 1 >= template_of.cache_info().currsize
