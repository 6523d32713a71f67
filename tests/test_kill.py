"""The server is killed in the middle of two hundred requests: whoever heard an end was counted, and nobody twice.

A process of its own with a store in a file, ten connections that stream over HTTP, and SIGKILL at a point that a seed
draws; then the same file again. Real sockets and a real file, so nothing here rests on how long anything takes.
"""

import http.client
import random
import re
import signal
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path

import orjson

from tests.command import Running

REQUESTS = 200
CONNECTIONS = 10
ROUNDS = 3
SAMPLER = "paced:calls=0,words=6,rate=20000,first=0.001"


class Listeners:
    """Clients that ask one thing after the other; they note the id of each response whose end they heard."""

    def __init__(self, port: int, kill_at: int, kill: "threading.Event") -> None:
        self.heard: list[str] = []
        self._left = REQUESTS
        self._lock = threading.Lock()
        self._kill_at, self._kill = kill_at, kill
        self._threads = [threading.Thread(target=self._ask, args=(port,)) for _ in range(CONNECTIONS)]

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()

    def _takes_one(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left >= 0

    def _ask(self, port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        with suppress(OSError, http.client.HTTPException):
            while self._takes_one():
                body = orjson.dumps({"model": "m", "input": "hi", "stream": True})
                connection.request("POST", "/v1/responses", body, {"content-type": "application/json"})
                self._listen(connection.getresponse())
        connection.close()

    def _listen(self, answer: http.client.HTTPResponse) -> None:
        for line in answer:
            if line.startswith(b'data: {"type":"response.completed"'):
                with self._lock:
                    self.heard.append(orjson.loads(line[6:])["response"]["id"])
                    if len(self.heard) >= self._kill_at:
                        self._kill.set()


def started(server: Running) -> int:
    found = re.search(r":(\d+)/", server.line_with("serving"))
    assert found is not None
    return int(found[1])


def killed_in_the_middle(store: Path, kill_at: int) -> list[str]:
    """Serve until so many ends were heard, then kill; the ids of the responses whose end was heard."""
    with Running("serve", "--port", "0", "--store", store, "--sampler", SAMPLER) as server:
        kill = threading.Event()
        listeners = Listeners(started(server), kill_at, kill)
        killer = threading.Thread(target=lambda: kill.wait(30) and server.signal(signal.SIGKILL))
        killer.start()
        listeners.run()
        kill.set()
        killer.join()
    return listeners.heard


def test_usage_survives_a_kill_once_for_each_end_that_was_heard(tmp_path: Path) -> None:
    """Three kills on one file: every heard end has its row, and no row stands twice.

    Its response is written while the client reads the end, so the last ones before a kill may be missing.
    """
    store, source = tmp_path / "store.db", random.Random(7)
    heard: list[str] = []
    kept: list[str] = []
    for _ in range(ROUNDS):
        kill_at = source.randrange(20, REQUESTS - 40)
        now = killed_in_the_middle(store, kill_at)
        assert kill_at <= len(now) < REQUESTS
        heard += now
        kept += now[: -2 * CONNECTIONS]
    with Running("serve", "--port", "0", "--store", store, "--sampler", SAMPLER) as server:
        connection = http.client.HTTPConnection("127.0.0.1", started(server), timeout=30)
        for response_id in kept[::25]:
            connection.request("GET", f"/v1/responses/{response_id}")
            assert "completed" == orjson.loads(connection.getresponse().read())["status"]
        connection.close()
    with sqlite3.connect(store) as database:
        rows = [row for (row,) in database.execute("select response_id from usage")]
    database.close()
    assert len(rows) == len(set(rows))
    assert set(heard) <= set(rows)
