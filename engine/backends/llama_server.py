"""The program of the child process: llama.cpp's server out of `xllamacpp`, until nobody holds its standard input.

    python -P llama_server.py '{"model": PATH, "slots": N, "context_tokens": N, "threads": N, …}'

It writes its address as one line of JSON on standard output when it listens and the model is loaded, and its log on
standard error. It knows nothing of this project, so that it can be run as a file.

The end of standard input is the end of whoever started it, however that came: then there is no reason to live.
"""

import json
import os
import sys
import threading
from typing import Any


def parameters(settings: dict[str, Any]) -> Any:
    """The server's parameters. Defaults are not trusted where they cost memory, time or a port."""
    import xllamacpp  # noqa: PLC0415  # an optional dependency

    wanted = xllamacpp.CommonParams()
    wanted.model.path = settings["model"]
    wanted.n_parallel = settings["slots"]
    wanted.n_ctx = settings["slots"] * settings["context_tokens"]
    wanted.n_batch = wanted.n_ubatch = settings["batch_tokens"]
    wanted.cpuparams.n_threads = wanted.cpuparams_batch.n_threads = settings["threads"]
    wanted.hostnames = ["127.0.0.1"]
    wanted.port = 0
    wanted.slot_save_path = settings["save_folder"] + os.sep
    wanted.endpoint_slots = wanted.endpoint_props = wanted.endpoint_metrics = True
    wanted.cache_ram_mib = 0  # states are kept in slots and files, where they are counted
    wanted.cache_idle_slots = False
    wanted.ctx_shift = False  # it would forget the beginning in silence
    wanted.fit_params = False  # it would shrink the context in silence
    wanted.use_jinja = wanted.warmup = wanted.ui = False
    return wanted


def die_with_the_parent() -> None:
    """Wait for the end of standard input, then end the process, whatever it does."""
    while os.read(0, 4096):
        pass
    os._exit(0)


def main() -> None:
    """Serve until standard input ends."""
    settings = json.loads(sys.argv[1])
    waiter = threading.Thread(target=die_with_the_parent)
    waiter.start()
    try:
        import xllamacpp  # noqa: PLC0415  # an optional dependency

        server = xllamacpp.Server(parameters(settings))
        sys.stdout.write(json.dumps({"url": server.listening_address}) + "\n")
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001  # whatever it is, it is said, and it is the end
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(1)
    waiter.join()


if __name__ == "__main__":
    main()
