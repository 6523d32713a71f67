"""R5: every embedded response is the same one."""

from typing import Any, Final

from protocol.rules.run import Run, shown
from protocol.rules.state import Response
from protocol.rules.stream_rules import R5

IDENTITY: Final = ("id", "model", "created_at", "previous_response_id")


def embedded(run: Run, response: Response, resource: object, *, partial: bool = False) -> None:
    """The embedded resource is that of this response; `partial`: only the members that it has."""
    if not isinstance(resource, dict):
        run.report(R5, "an embedded response", shown(resource), of=response)
        return
    if response.identity is None:
        _first(run, response, resource)
        return
    for key in IDENTITY:
        if partial and key not in resource:
            continue
        if resource.get(key) != response.identity[key]:
            run.report(
                R5, f"{key} {shown(response.identity[key])}", f"{key} {shown(resource.get(key))}", of=response
            )
            response.identity[key] = resource.get(key)


def _first(run: Run, response: Response, resource: dict[str, Any]) -> None:
    response_id = resource.get("id")
    if not isinstance(response_id, str) or not response_id:
        run.report(R5, "a response with an id", f"id {shown(response_id)}", of=response)
    elif response.id is None and run.known(response_id) is None:
        response.id = response_id
        run.live[response_id] = response
    response.identity = {key: resource.get(key) for key in IDENTITY}
