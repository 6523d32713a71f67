"""What may be said to `suspended tap`, and the help that teaches it. Imports nothing heavy."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Final

SUMMARY: Final = "stand between any client and any server, and say when the order of events is wrong"

EPILOG: Final = """\
Point the client at the address of --listen instead of the server's, and leave the rest as it is: paths, keys and bodies
pass as they are, byte for byte, over HTTP and WebSocket. Nothing is changed but, if --host is `upstream`, the Host line
of requests: a server that is known by its name answers to no other.

  --host keep      every byte as the client sent it; the default for an upstream on this machine
  --host upstream  requests name the upstream; the default for all others

--trace DIR keeps what passed, one file for each form of the API (http, create, inject, append), behind what is there
already; read it with `suspended check DIR/*.jsonl`. Authorization headers are not written, keys in addresses and
frames are replaced by ***. The files hold prompts and answers: they are made readable for you only.
What the tap cannot read (a br or zstd body, what is too large, what is no HTTP/1.1) is relayed all the same,
and a `gap` in the trace says so.

The client speaks plain HTTP to the tap; towards an https or wss upstream it is TLS, with the certificate checked
(SSL_CERT_FILE names authorities of your own).

SIGTERM drains: connections may end what they are at for --drain seconds. Ctrl-C ends at once.

examples:
  suspended tap --listen 127.0.0.1:8787 --upstream https://api.openai.com --trace seen
  OPENAI_BASE_URL=http://127.0.0.1:8787/v1 python my_agent.py
  suspended tap --listen 127.0.0.1:8787 --upstream ws://127.0.0.1:8080 --profile this-engine

exit codes:
  0    events were checked, and no rule is broken
  1    violations
  2    wrong usage
  3    nothing was checked: no event of a response passed, or no rule could be evaluated
"""


def add_tap(parser: ArgumentParser) -> None:
    """The command's arguments."""
    add = parser.add_argument
    add("--listen", required=True, metavar="HOST:PORT", help="where clients come; port 0 takes any free one")
    add(
        "--upstream",
        required=True,
        metavar="URL",
        help="the server: http, https, ws or wss, host and port; paths are the client's",
    )
    add("--trace", type=Path, metavar="DIR", help="keep what passed in this folder (JSON lines)")
    add(
        "--profile",
        choices=("any-server", "openai", "this-engine"),
        default="any-server",
        help="which rules, and how strict (default: any-server)",
    )
    add("--host", choices=("keep", "upstream"), help="what requests say in Host; see below")
    add("--json", action="store_true", help="an object a line for each violation, then one with the totals")
    add(
        "--drain",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long connections may go on after SIGTERM (default: 30)",
    )
    parser.set_defaults(command="tap")
