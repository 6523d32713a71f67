"""The tool of the SDKs' clients, and how its calls are answered by hand."""

from typing import Any, Final

import orjson

from engine.pointers import pointer
from tests.clients.served import Served
from tests.clients.weather import weather_of

TERMINAL: Final = ("response.completed", "response.failed", "response.incomplete", "error")
GET_WEATHER: Final[dict[str, Any]] = {
    "type": "function",
    "name": "get_weather",
    "description": "Tell the weather of a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CREATE: Final[dict[str, Any]] = {
    "model": "test-model",
    "input": "How is the weather?",
    "tools": [GET_WEATHER],
    "store": False,
}


def output_of(call: Any) -> dict[str, str]:
    """Run the tool that a call asks for."""
    city = orjson.loads(call.arguments)["city"]
    return {"type": "function_call_output", "call_id": call.call_id, "output": weather_of(city)}


def outputs_of(response: Any) -> list[dict[str, str]]:
    """Run all that a response asks for."""
    return [output_of(item) for item in response.output if item.type == "function_call"]


def is_call(event: Any) -> bool:
    """Is this a finished call?"""
    return event.type == "response.output_item.done" and event.item.type == "function_call"


def run_printed(served: Served, client: str, more: str = "", **names: Any) -> dict[str, Any]:
    """Run the lines that the server prints for a client, and more after them; the names they leave."""
    found = {"KEY": "sk-test", **names}
    exec(pointer(client).at(served.place) + more, found)
    return found
