"""Models for Codex: one runs all commands of the message at once, one writes a file by the patch tool."""

from demos.agents.shell import commands
from engine.samplers.policy import Policy, Say, Script, Tools, Use, program

PATCHED = "patched.txt"
PATCH = f"*** Begin Patch\n*** Add File: {PATCHED}\n+hi\n*** End Patch"


def _run_together(prompt: str, _tools: Tools) -> Script:
    found = commands(prompt)
    outputs = yield tuple(Use("exec_command", {"cmd": command, "login": False}) for command in found)
    last_lines = [output.strip().rpartition("\n")[2] for output in outputs]
    yield Say("; ".join(last_lines))


def _patch(_prompt: str, _tools: Tools) -> Script:
    output = yield Use("apply_patch", PATCH)
    yield Say("patched" if "Success" in output else output)


together: Policy = program(_run_together)
patch: Policy = program(_patch)
