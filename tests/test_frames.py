"""engine.frames: whole frames out, header counts in; all pure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.events import CloseConnection, TextMessage
from wsproto.frame_protocol import FrameProtocol, Opcode

from engine.config import Limits
from engine.frames import InboundFrames, close_frame, frame
from tests.wire import CLOSE, CONTINUATION, PING, REQUEST, TEXT, client_frame

LIMITS = Limits(max_message_bytes=1000, max_fragments=4, max_frames_per_second=10)
HEAD = REQUEST + b"\r\n"


def open_counter(limits: Limits = LIMITS) -> InboundFrames:
    """A counter whose handshake is done."""
    counter = InboundFrames(limits)
    assert counter.admit(HEAD, 0.0) == len(HEAD)
    counter.answered = True
    return counter


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 70_000])
@pytest.mark.parametrize("masked", [False, True])
def test_wsproto_reads_our_frames(size: int, masked: bool) -> None:
    """A frame of each length form, masked or not, is read by wsproto as the payload it was made of."""
    payload = bytes(index % 251 for index in range(size))
    reader = FrameProtocol(client=not masked, extensions=[])
    reader.receive_bytes(frame(0x82, payload, masked=masked))
    (received,) = reader.received_frames()
    assert isinstance(received.payload, bytes)
    assert (received.opcode, received.payload, received.message_finished) == (Opcode.BINARY, payload, True)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("", ""), ("x" * 200, "x" * 123), ("é" * 100, "é" * 61)],
)
def test_close_reasons_are_cut_between_characters(reason: str, expected: str) -> None:
    """A close frame holds its code and at most 123 bytes of reason, never half a character."""
    reader = FrameProtocol(client=True, extensions=[])
    reader.receive_bytes(close_frame(1008, reason))
    (received,) = reader.received_frames()
    assert received.payload == (1008, expected)


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        pytest.param(client_frame(TEXT, b"x" * 1000), None, id="message of exactly the limit"),
        pytest.param(client_frame(TEXT, b"x" * 1001), 1009, id="message one byte over"),
        pytest.param(client_frame(TEXT, "\U0001f600".encode() * 250), None, id="250 characters of 4 bytes"),
        pytest.param(client_frame(TEXT, "\U0001f600".encode() * 251), 1009, id="251 characters of 4 bytes"),
        pytest.param(
            client_frame(TEXT, b"x" * 600, final=False) + client_frame(CONTINUATION, b"x" * 400),
            None,
            id="fragments of exactly the limit",
        ),
        pytest.param(
            client_frame(TEXT, b"x" * 600, final=False) + client_frame(CONTINUATION, b"x" * 401),
            1009,
            id="fragments one byte over",
        ),
        pytest.param(
            client_frame(TEXT, final=False)
            + client_frame(CONTINUATION, final=False) * 2
            + client_frame(CONTINUATION),
            None,
            id="empty fragments, exactly the limit",
        ),
        pytest.param(
            client_frame(TEXT, final=False) + client_frame(CONTINUATION, final=False) * 4,
            1008,
            id="empty fragments, one over",
        ),
        pytest.param(
            client_frame(TEXT, b"xx", final=False) + client_frame(CONTINUATION, b"xx", final=False) * 4,
            1008,
            id="2-byte fragments, one over",
        ),
        pytest.param(
            client_frame(TEXT, final=False)
            + client_frame(CONTINUATION, final=False) * 2
            + client_frame(PING) * 3
            + client_frame(CONTINUATION),
            None,
            id="control frames between fragments are none",
        ),
        pytest.param(client_frame(TEXT, b"x" * 900) * 3, None, id="each message counts alone"),
        pytest.param(client_frame(PING) * 10, None, id="pings, exactly the rate"),
        pytest.param(client_frame(PING) * 11, 1008, id="pings, one over the rate"),
        pytest.param(client_frame(TEXT, b"x") * 11, 1008, id="tiny messages, one over the rate"),
        pytest.param(client_frame(PING, b"x" * 125), None, id="longest control frame"),
        pytest.param(client_frame(PING, b"x" * 126), 1002, id="control frame that hides what follows"),
    ],
)
def test_limits(chunk: bytes, expected: int | None) -> None:
    """Exactly the limit passes whole; one more is a violation with its own close code."""
    counter = open_counter()
    admitted = counter.admit(chunk, 1.0)
    assert (counter.violation and counter.violation[0], admitted == len(chunk)) == (
        expected,
        expected is None,
    )


def test_a_declared_length_is_enough() -> None:
    """A message over the limit is refused at its header, with nothing of it passed on, before a byte of it arrives."""
    counter = open_counter()
    first = client_frame(TEXT, b"small")
    assert counter.admit(first + b"\x81\xff" + (2**40).to_bytes(8, "big") + b"mask", 1.0) == len(first)
    assert counter.violation == (1009, "a message of more than 1000 bytes")


def test_the_rate_is_of_any_second() -> None:
    """Frames count for exactly one second, whenever it began."""
    counter = open_counter()
    for now in (0.0, 0.5):
        counter.admit(client_frame(PING) * 5, now)
    counter.admit(client_frame(PING) * 5, 1.0)  # the five of 0.0 are forgotten
    assert counter.violation is None
    counter.admit(client_frame(PING), 1.4)
    assert counter.violation == (1008, "more than 10 frames in a second")


def test_the_memory_of_the_rate_is_bounded() -> None:
    """Hours of traffic leave one second of entries."""
    counter = open_counter()
    for second in range(10_000):
        counter.admit(client_frame(PING), float(second))
    assert (counter.frames, len(counter._recent)) == (10_000, 1)


def test_a_frame_before_the_answer_is_refused() -> None:
    """RFC 6455 4.1: the client waits; wsproto would drop the frame, and from then on see other frames than we do."""
    counter = InboundFrames(LIMITS)
    assert counter.admit(HEAD + client_frame(TEXT, b"early"), 0.0) == 0
    assert counter.violation == (1002, "data before the answer to the handshake")


@pytest.mark.parametrize("line_end", [b"\r\n", b"\n"])
def test_the_head_ends_where_h11_sees_it_end(line_end: bytes) -> None:
    """Bare line feeds end a head too, so frames behind them do not go uncounted."""
    counter = InboundFrames(LIMITS)
    head = HEAD.replace(b"\r\n", line_end)
    assert counter.admit(head, 0.0) == len(head)
    counter.answered = True
    counter.admit(client_frame(TEXT, b"x"), 0.0)
    assert counter.frames == 1


def test_an_endless_head_is_refused() -> None:
    """A head may have so many bytes, and the empty line at its end, and no more."""
    counter = InboundFrames(Limits(max_head_bytes=2000))
    assert counter.admit(b"x" * 2004, 0.0) == 2004
    assert counter.admit(b"x", 0.0) == 0
    assert counter.violation == (1009, "more than 2000 bytes of headers")


@st.composite
def inbound_streams(draw: st.DrawFn) -> tuple[bytes, list[int]]:
    """Frames around all limits and length forms, and positions to cut them at."""
    sizes = st.sampled_from([0, 1, 2, 124, 125, 126, 127, 500, 1000, 1001])
    opcodes = st.sampled_from([TEXT, CONTINUATION, PING, CLOSE])
    frames = draw(st.lists(st.tuples(opcodes, sizes, st.booleans()), max_size=14))
    data = b"".join(client_frame(opcode, b"p" * size, final=final) for opcode, size, final in frames)
    return data, sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))


@given(inbound_streams())
def test_any_chunking_counts_alike(stream: tuple[bytes, list[int]]) -> None:
    """Wherever the network cuts, the same violation is found at the same frame, and no byte of its payload passes."""
    data, cuts = stream
    whole = open_counter()
    admitted_whole = whole.admit(data, 1.0)
    pieces = open_counter()
    admitted = 0
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        if pieces.violation is None:
            admitted += pieces.admit(data[start:end], 1.0)
    assert (pieces.violation, pieces.frames, pieces.peer_closing) == (
        whole.violation,
        whole.frames,
        whole.peer_closing,
    )
    longest_header = 14
    assert admitted_whole <= admitted < admitted_whole + longest_header
    if whole.violation is None:
        assert admitted == len(data)


def test_any_single_cut_of_the_head_counts_alike() -> None:
    """A head in two pieces, cut at each position, ends at the same byte."""
    data = HEAD + client_frame(TEXT, b"hello")
    for cut in range(1, len(HEAD)):
        counter = InboundFrames(LIMITS)
        counter.admit(data[:cut], 0.0)
        assert counter.admit(HEAD[cut:], 0.0) == len(HEAD) - cut
        counter.answered = True
        counter.admit(data[len(HEAD) :], 0.0)
        assert (counter.frames, counter.violation) == (1, None)


@given(
    st.one_of(
        st.text(max_size=200).map(lambda text: client_frame(TEXT, text.encode())),
        st.binary(max_size=140).map(lambda payload: client_frame(TEXT, payload)),
        st.tuples(st.integers(0, 15), st.binary(max_size=20), st.booleans()).map(
            lambda made: client_frame(made[0], made[1], final=made[2])
        ),
        st.binary(max_size=40),
    ),
    st.binary(max_size=3),
)
def test_a_whole_text_is_what_wsproto_reads(data: bytes, more: bytes) -> None:
    """What is taken past the library is exactly what it would have read; all else is left, and nothing counted."""
    counter, reader = open_counter(Limits()), FrameProtocol(client=False, extensions=[])
    text = counter.take_text(data + more, 0.0)
    if text is None:
        assert (0, 0) == (counter.frames, counter.messages)
        return
    reader.receive_bytes(data + more)
    (received,) = reader.received_frames()
    assert (Opcode.TEXT, text.decode(), True) == (
        received.opcode,
        received.payload,
        received.message_finished,
    )
    assert (1, 1, None) == (counter.frames, counter.messages, counter.violation)


@pytest.mark.parametrize("text", ["", "a", "é" * 300, "x" * 65_535])
def test_a_plain_text_is_taken(text: str) -> None:
    """A whole frame of text below 64 KiB is taken."""
    assert open_counter(Limits()).take_text(client_frame(TEXT, text.encode()), 0.0) == text.encode()


@pytest.mark.parametrize(
    ("before", "data"),
    [
        pytest.param(client_frame(TEXT, b"x", final=False), client_frame(TEXT, b"x"), id="within a message"),
        pytest.param(client_frame(TEXT, b"xyz")[:-1], client_frame(TEXT, b"x"), id="within a frame"),
        pytest.param(client_frame(TEXT, b"xyz")[:3], client_frame(TEXT, b"x"), id="within a header"),
        pytest.param(b"", client_frame(TEXT, b"x" * 1001), id="too big"),
        pytest.param(client_frame(PING) * 10, client_frame(TEXT, b"x"), id="too many"),
        pytest.param(b"", b"\x81\xfe\x00\x01" + bytes(4) + b"x", id="size in more bytes than it needs"),
        pytest.param(b"", b"\x81\x01x", id="not masked"),
    ],
)
def test_what_is_not_plain_is_left_to_the_library(before: bytes, data: bytes) -> None:
    """Half read messages, limits and errors go the way of all bytes."""
    counter = open_counter()
    counter.admit(before, 0.0)
    frames = counter.frames
    assert (None, frames) == (counter.take_text(data, 0.0), counter.frames)


def test_texts_that_are_taken_count_like_others() -> None:
    """Ten frames in a second are the limit, whichever way they come."""
    counter, plain = open_counter(), client_frame(TEXT, b"x")
    assert [b"x"] * 10 == [counter.take_text(plain, 0.5) for _ in range(10)]
    counter.admit(plain, 0.9)
    assert counter.violation is not None
    assert (1008, 11) == (counter.violation[0], counter.frames)


@given(st.binary(max_size=300), st.integers(1, 50))
def test_no_bytes_make_it_raise(data: bytes, step: int) -> None:
    """Garbage is skipped or refused, and never more is admitted than was given."""
    counter = open_counter()
    for start in range(0, len(data), step):
        chunk = data[start : start + step]
        assert 0 <= counter.admit(chunk, 1.0) <= len(chunk)
        if counter.violation is not None:
            break


def test_the_wsproto_events_of_this_version_are_what_we_think() -> None:
    """wsproto reports a bad frame as a close event and leaves its state open: nobody tells the peer but us."""
    from wsproto.connection import Connection, ConnectionState, ConnectionType

    connection = Connection(ConnectionType.SERVER)
    connection.receive_data(client_frame(TEXT, b"ok") + client_frame(TEXT, b"\xff"))
    first, second = connection.events()
    assert isinstance(first, TextMessage)
    assert isinstance(second, CloseConnection)
    assert (second.code, connection.state) == (1007, ConnectionState.OPEN)
