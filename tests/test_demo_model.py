"""`suspended demo --model` when the model's server is not what it should be: what is said, and the exit code."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from engine.cli import main


class _Refusing(BaseHTTPRequestHandler):
    """A llama.cpp server that is up and generates nothing."""

    def do_GET(self):
        self._answer(
            200, {"default_generation_settings": {"n_ctx": 2048}, "total_slots": 1, "eos_token": "<|im_end|>"}
        )

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/tokenize":
            self._answer(200, {"tokens": [151645]})
        else:
            self._answer(500, {"error": {"message": "out of memory"}})

    def _answer(self, status, body):
        written = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(written)))
        self.end_headers()
        self.wfile.write(written)

    def log_message(self, *_):
        """Nothing."""


@contextmanager
def serving():
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}?format=chatml&tokenizer=qwen3"
        finally:
            server.shutdown()
            thread.join()


def test_a_server_that_is_not_there(capsys):
    """One line with its address, and nothing of a rollout."""
    assert main(["demo", "--model", "http://127.0.0.1:1?format=chatml&tokenizer=qwen3"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), "--model: http://127.0.0.1:1: cannot reach" in err) == ("", 1, True)


def test_a_model_that_fails(capsys):
    """The response's error is told, and no count of tokens that nobody read."""
    with serving() as url:
        assert main(["demo", "--model", url]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].strip().startswith("failed: ")
    assert ("the model read" in out, "Traceback" in err) == (False, False)
