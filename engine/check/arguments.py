"""What may be said to `suspended check`, and the help that teaches it. Imports nothing heavy."""

from argparse import ArgumentParser
from typing import Final

SUMMARY: Final = "say whether an event stream is in order: any server's, from a log of any kind"

EPILOG: Final = """\
formats (found out by looking; --format overrides):
  trace   this project's own, of --trace and of tap: both directions, times, lanes, hooks (JSON lines)
  sse     what curl -N or curl -i writes: event: and data: lines, one or several answers
  frames  WebSocket frames, one JSON a line, bare or wrapped: {"dir": "in" (from the client) or "out", "frame": ...},
          {"direction": "sent", "data": "..."}; what a word means is learnt from the frames
  har     saved by a browser's developer tools, with Chrome's WebSocket messages (loaded whole, the others are not)
  events  openai-python's events, one a line: event.to_json(indent=None), or repr(event)
A log has what it has: an SSE log has no requests, so rules about them are reported as not evaluated.

profiles:
  any-server   what every server should do; tolerates what several do
  openai       the same, and what OpenAI's servers do
  this-engine  all rules, without tolerance

examples:
  curl -sN https://api.openai.com/v1/responses -H "authorization: Bearer $KEY" -H content-type:application/json \\
      -d '{"model":"...","input":"hi","stream":true}' | suspended check -
  suspended check --profile openai --json frames.jsonl browser.har
  suspended check --explain R3            what the rule says, why, and the smallest stream that breaks it

exit codes:
  0    at least one event of a response was checked, and no rule is broken
  1    violations
  2    the input is no log that is known, or wrong usage
  3    nothing was checked: no event, or no rule could be evaluated
  130  interrupted; the totals so far are said
"""


def add_check(parser: ArgumentParser) -> None:
    """The command's arguments."""
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help="logs to check; - reads standard input")
    add(
        "--profile",
        choices=("any-server", "openai", "this-engine"),
        default="any-server",
        help="which rules, and how strict; see below (default: any-server)",
    )
    add(
        "--format",
        choices=("trace", "sse", "frames", "har", "events"),
        help="what the files are; see below (default: found out)",
    )
    add(
        "--form",
        choices=("append", "inject", "create", "http"),
        help="the form of a log that is no trace (default: guessed from its first frames)",
    )
    add("--json", action="store_true", help="an object a line for each violation, then one with the totals")
    add("--explain", metavar="RULE", help="explain a rule, and check nothing")
    add("--list", action="store_true", help="list all rules, and check nothing")
    parser.set_defaults(command="check")
