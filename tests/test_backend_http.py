"""The way to a backend: what is sent, how answers and streams are read, and how each fault is told."""

import ssl
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from engine.backends.base import BackendError
from engine.backends.http import BackendHttp, BackendRefusedError, Patience
from engine.backends.http_connection import MAX_ANSWER_BYTES
from engine.backends.options import http_of, split_options, whole_number, yes_or_no
from tests.backend_peer import backend_peer

URL = "http://backend:8000/base/"


def http_to(peer, **options):
    return BackendHttp(URL, dialled=peer.dial, **options)


async def collected(http, **options):
    async with aclosing(http.stream_json("/stream", {}, **options)) as events:
        return [event async for event in events]


async def play_two(asked, reply):
    await reply.play({"n": 1}, {"n": 2})


# --- what is sent and read -----------------------------------------------------------------------------------------


async def test_a_request_carries_its_json_the_key_and_the_base_path(autojump_clock):
    """A post is sent to the base path with its JSON body and the key as a bearer token, and its answer is decoded."""

    async def answer(asked, reply):
        await reply.json({"ok": True})

    async with backend_peer(answer) as peer:
        assert await http_to(peer, key="secret").post_json("/v1/x", {"a": [1, "ü"]}) == {"ok": True}
    (asked,) = peer.asked
    assert (asked.method, asked.target, asked.body) == ("POST", "/base/v1/x", {"a": [1, "ü"]})
    assert asked.headers["authorization"] == "Bearer secret"
    assert asked.headers["host"] == "backend:8000"


async def test_a_connection_is_used_again(autojump_clock):
    """Requests one after the other use one connection, also after a stream."""

    async def answer(asked, reply):
        await (reply.play({"n": 1}) if asked.target.endswith("stream") else reply.json([]))

    async with backend_peer(answer) as peer:
        http = http_to(peer)
        assert await collected(http) == [{"n": 1}]
        assert await http.get_json("/list") == []
        assert await collected(http) == [{"n": 1}]
        assert http.connections_made == 1
        await http.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert peer.left == 1


async def test_two_requests_at_the_same_time_have_two_connections(autojump_clock):
    """A request does not wait for the stream of another one."""
    async with backend_peer(play_two) as peer:
        http = http_to(peer)
        async with (
            aclosing(http.stream_json("/stream", {})) as first,
            aclosing(http.stream_json("/stream", {})) as second,
        ):
            assert [await anext(first), await anext(second)] == [{"n": 1}, {"n": 1}]
        assert http.connections_made == 2


@pytest.mark.parametrize("cut", range(1, 60, 7))
async def test_events_are_whole_however_they_are_cut(autojump_clock, cut):
    """Events, comments and other fields are read alike in pieces of any size."""
    text = ': ping\r\n\r\nevent: x\r\ndata: {"a":\r\ndata: "é"}\r\n\r\ndata: {"b":2}\n\ndata: [DONE]\n\n'.encode()

    async def answer(asked, reply):
        await reply.begin_stream()
        for at in range(0, len(text), cut):
            await reply.raw(text[at : at + cut])
        await reply.end_stream(done=False)

    async with backend_peer(answer) as peer:
        assert await collected(http_to(peer)) == [{"a": "é"}, {"b": 2}]


async def test_the_end_mark_is_shown_on_request(autojump_clock):
    """Whoever asks for it is told by a last None that the stream had its end mark; without the mark there is none."""

    async def answer(asked, reply):
        await reply.play({"n": 1}, done=len(peer.asked) == 1)

    async with backend_peer(answer) as peer:
        http = http_to(peer)
        assert await collected(http, shows_done=True) == [{"n": 1}, None]
        assert await collected(http, shows_done=True) == [{"n": 1}]


async def test_an_answer_that_is_no_stream_is_its_only_event(autojump_clock):
    """A server that ignores the wish for a stream gives one object."""

    async def answer(asked, reply):
        await reply.json({"whole": True})

    async with backend_peer(answer) as peer:
        assert await collected(http_to(peer)) == [{"whole": True}]


async def test_an_error_line_is_an_event(autojump_clock):
    """The field `error`, as llama.cpp writes it into a stream, is not passed over."""

    async def answer(asked, reply):
        await reply.begin_stream()
        await reply.raw(b'data: {"n":1}\n\nerror: {"code":500,"message":"no"}\n\n')
        await reply.end_stream(done=False)

    async with backend_peer(answer) as peer:
        assert await collected(http_to(peer)) == [{"n": 1}, {"error": {"code": 500, "message": "no"}}]


# --- leaving -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["close", "cancel"])
async def test_leaving_a_stream_closes_its_connection_at_once(autojump_clock, way):
    """A stream that is closed or cancelled before its end has its connection closed, without any time going by."""
    left_at = []

    async def answer(asked, reply):
        await reply.begin_stream()
        await reply.event({"n": 1})
        await reply.wait_left()
        left_at.append(trio.current_time())

    async with backend_peer(answer) as peer:
        began = trio.current_time()
        with trio.CancelScope() as scope:
            async with aclosing(http_to(peer).stream_json("/stream", {})) as events:
                await anext(events)
                if way == "cancel":
                    scope.cancel()
                    await anext(events)
        await trio.testing.wait_all_tasks_blocked()
        assert left_at == [began]


async def test_a_stream_that_does_not_end_after_its_last_event_is_not_waited_for(autojump_clock):
    """After the end mark the answer's end is waited for a moment, then the connection is given up."""

    async def answer(asked, reply):
        await reply.begin_stream()
        await reply.event({"n": 1})
        await reply.event(b"[DONE]")
        await reply.wait_left()

    async with backend_peer(answer) as peer:
        began = trio.current_time()
        assert await collected(http_to(peer)) == [{"n": 1}]
        assert trio.current_time() - began == pytest.approx(0.1)


# --- faults --------------------------------------------------------------------------------------------------------


async def failing(http, path="/x"):
    with pytest.raises(BackendError) as caught:
        await http.post_json(path, {})
    return caught.value


async def test_a_refusal_has_its_status_and_what_was_said_but_not_the_key(autojump_clock):
    """A status that is not 2xx is `refused`; the answer is quoted with the key blotted out."""

    async def answer(asked, reply):
        await reply.json({"error": {"message": "wrong key s3cret-key"}}, status=401)

    async with backend_peer(answer) as peer:
        error = await failing(http_to(peer, key="s3cret-key"))
    assert isinstance(error, BackendRefusedError)
    assert (error.reason, error.status) == ("refused", 401)
    assert "wrong key ***" in str(error)
    assert "s3cret-key" not in str(error)


async def test_nobody_there_is_unreachable():
    """A port on which nobody listens is `unreachable`."""
    with trio.socket.socket() as taken:
        await taken.bind(("127.0.0.1", 0))
        error = await failing(BackendHttp(f"http://127.0.0.1:{taken.getsockname()[1]}"))
    assert error.reason == "unreachable"


async def test_a_connection_that_does_not_come_about_is_unreachable(autojump_clock):
    """Dialling is given up after `connect_seconds`."""
    http = BackendHttp(URL, dialled=trio.sleep_forever, patience=Patience(connect_seconds=3))
    error = await failing(http)
    assert error.reason == "unreachable"
    assert "3 s" in str(error)


async def test_silence_is_a_timeout(autojump_clock):
    """A server that says nothing for longer than it may is a `timeout`, and its connection is closed."""

    async def answer(asked, reply):
        await reply.wait_left()

    async with backend_peer(answer) as peer:
        began = trio.current_time()
        error = await failing(http_to(peer, patience=Patience(silence_seconds=7)))
        assert (error.reason, trio.current_time() - began) == ("timeout", pytest.approx(7))
        await trio.testing.wait_all_tasks_blocked()
        assert peer.left == 1


async def test_a_server_that_hangs_up_has_died(autojump_clock):
    """A hang-up before the answer, and one in the middle of a stream, are both `died`."""

    async def answer(asked, reply):
        if asked.target.endswith("stream"):
            await reply.begin_stream()
            await reply.event({"n": 1})
        await reply.hang_up()

    async with backend_peer(answer) as peer:
        http = http_to(peer)
        assert (await failing(http)).reason == "died"
        async with aclosing(http.stream_json("/stream", {})) as events:
            assert await anext(events) == {"n": 1}
            with pytest.raises(BackendError) as caught:
                await anext(events)
        assert caught.value.reason == "died"


async def test_a_kept_connection_that_has_ended_is_replaced(autojump_clock):
    """A request on a kept connection that ends at once, without an answer, is asked again, once, on a new one."""

    async def answer(asked, reply):
        if len(peer.asked) in (2, 4, 5):
            await reply.hang_up()
        else:
            await reply.json(len(peer.asked))

    async with backend_peer(answer) as peer:
        http = http_to(peer)
        assert await http.get_json("/x") == 1
        assert await http.get_json("/x") == 3
        assert http.connections_made == 2
        assert (await failing(http)).reason == "died"
        assert len(peer.asked) == 5


async def test_a_hang_up_after_a_while_is_not_asked_again(autojump_clock):
    """What was asked on a kept connection may have run when the server hangs up later, so it is not sent twice."""

    async def answer(asked, reply):
        if len(peer.asked) == 2:
            await trio.sleep(2)
            await reply.hang_up()
        else:
            await reply.json({})

    async with backend_peer(answer) as peer:
        http = http_to(peer)
        await http.get_json("/x")
        assert (await failing(http)).reason == "died"
        assert len(peer.asked) == 2


async def test_a_socket_that_was_closed_meanwhile_is_seen_before_it_is_used():
    """Over TCP a kept connection that has ended is not written to."""
    asked = []

    async def serve(stream):
        async with stream:
            asked.append(await stream.receive_some())
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        http = BackendHttp(f"http://127.0.0.1:{listener.socket.getsockname()[1]}")
        assert await http.get_json("/x") == {}
        (kept,) = http._idle
        while not kept.has_news:  # the hang-up is on its way
            await trio.lowlevel.checkpoint()
        assert await http.get_json("/x") == {}
        assert (len(asked), http.connections_made) == (2, 2)
        await http.aclose()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n<p>", "no JSON"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (MAX_ANSWER_BYTES + 1)
            + b"1" * (MAX_ANSWER_BYTES + 1),
            "more than",
        ),
    ],
    ids=["not HTTP", "not JSON", "too large"],
)
async def test_an_answer_that_is_none_is_a_broken_promise(autojump_clock, text, words):
    """What is no HTTP, no JSON or has no end is `broke_promise`."""

    async def answer(asked, reply):
        await reply.stream.send_all(text)
        await reply.wait_left()

    async with backend_peer(answer) as peer:
        error = await failing(http_to(peer))
    assert error.reason == "broke_promise"
    assert words in str(error)


async def test_an_event_without_end_is_a_broken_promise(autojump_clock):
    """One event may not fill the memory."""

    async def answer(asked, reply):
        await reply.begin_stream()
        while True:
            await reply.raw(b"data: " + b"x" * 1_000_000)

    async with backend_peer(answer) as peer:
        with pytest.raises(BackendError, match="more than") as caught:
            await collected(http_to(peer))
    assert caught.value.reason == "broke_promise"


# --- how it is written ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://host", "http://", "http://user:pw@host", "http://host/?a=b"]
)
def test_an_url_that_cannot_be_used_is_refused(url):
    """Only http and https URLs without user and query are taken, and a password in one is not repeated."""
    with pytest.raises(ValueError, match="a backend's URL is") as caught:
        BackendHttp(url)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("key", ["", " x", "a\nb", "ключ"])
def test_a_key_that_cannot_be_sent_is_refused(key):
    """A key that would break the request's head is refused."""
    with pytest.raises(ValueError, match="this one cannot be sent"):
        BackendHttp(URL, key=key)


def test_a_key_comes_from_the_environment_and_is_never_shown(monkeypatch):
    """A key is named by its variable; a missing one, or a key itself in its place, is refused without being repeated."""
    monkeypatch.setenv("MODEL_KEY", "s3cret")
    assert http_of("chat", URL, {"key": "MODEL_KEY"})._key == "s3cret"
    for wrong in ("sk-s3cret", "S3CRET"):
        with pytest.raises(ValueError, match=r"chat: key= ") as caught:
            http_of("chat", URL, {"key": wrong})
        assert wrong not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: split_options("k", "http://h?colour=red", ("model",)),
            "no option 'colour'; there are model",
        ),
        (lambda: split_options("k", "?model=m", ("model",)), "needs a URL"),
        (lambda: whole_number("k", {"n": "1.5"}, "n", 1), "not a whole number"),
        (lambda: whole_number("k", {"n": "x"}, "n", 1), "not a number above 0"),
        (lambda: whole_number("k", {"n": "-1"}, "n", 1), "not a number above 0"),
        (lambda: yes_or_no("k", {"n": "maybe"}, "n", default=True), "neither yes nor no"),
        (lambda: http_of("k", "ftp://h", {}), "a backend's URL is"),
        (lambda: http_of("k", URL, {"silence": "nan"}), "not a number above 0"),
    ],
)
def test_an_option_that_cannot_be_read_is_named(make, words):
    """A wrong option is a `ValueError` that begins with the kind and says what is wrong."""
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert str(caught.value).startswith("k: ")


async def test_https_is_spoken_and_certificates_are_checked(monkeypatch):
    """Over TLS a request works if the certificate is trusted; else the backend is unreachable, and it is said why."""

    async def serve(stream):
        async with stream:
            with suppress(trio.BrokenResourceError):
                await stream.receive_some()
                await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue")
                await stream.receive_some()

    tls = Path(__file__).parent / "tls"
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls / "cert.pem", tls / "key.pem")
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(
            partial(trio.serve_ssl_over_tcp, serve, 0, context, host="127.0.0.1", https_compatible=True)
        )
        http = BackendHttp(f"https://localhost:{listeners[0].transport_listener.socket.getsockname()[1]}")
        error = await failing(http)
        assert error.reason == "unreachable"
        assert "self-signed certificate" in str(error)
        monkeypatch.setenv("SSL_CERT_FILE", str(tls / "cert.pem"))
        assert await http.post_json("/x", {}) is True
        assert await http.post_json("/x", {}) is True
        await http.aclose()
        nursery.cancel_scope.cancel()


async def test_answers_that_come_before_others_are_passed_over(autojump_clock):
    """A server may say `100 Continue`, or answer before it has read everything; the answer counts."""

    async def answer(asked, reply):
        await reply.stream.send_all(b"HTTP/1.1 100 Continue\r\n\r\n")
        await reply.json({"n": len(peer.asked)})

    async def hasty():
        ours, theirs = trio.testing.memory_stream_pair()
        await theirs.send_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        ours.send_stream.close()
        return ours

    async with backend_peer(answer) as peer:
        assert await http_to(peer).get_json("/x") == {"n": 1}
    http = BackendHttp(URL, dialled=hasty)
    assert (await failing(http)).status == 413
    assert http._idle == []


async def test_a_server_that_does_not_read_is_a_timeout(autojump_clock):
    """A request of which nothing is taken for too long is given up."""

    class Deaf(trio.abc.Stream):
        async def send_all(self, data):
            await trio.sleep_forever()

        async def wait_send_all_might_not_block(self):
            await trio.lowlevel.checkpoint()

        async def receive_some(self, max_bytes=None):
            await trio.sleep_forever()

        async def aclose(self):
            await trio.lowlevel.checkpoint()

    async def dialled():
        await trio.lowlevel.checkpoint()
        return Deaf()

    error = await failing(BackendHttp(URL, dialled=dialled, patience=Patience(silence_seconds=4)))
    assert (error.reason, "took nothing" in str(error)) == ("timeout", True)
