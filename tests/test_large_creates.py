"""A create may be as large as a message, and is echoed: the connection bears it, whatever the form."""

import pytest

from engine.config import DEFAULT_LIMITS
from engine.engine import Engine
from engine.local import local_client
from engine.samplers.policy import PolicySampler, Say, program

FORMS = ["append", "inject", "create", "http"]
ROOM_BYTES = 4096
"""For the other members of the create."""


def model(_prompt, _tools):
    yield Say("Read.")


@pytest.mark.parametrize("form", FORMS)
async def test_a_create_as_large_as_a_message_is_answered(form):
    """Its two echoes and the terminal event's wait in the outbox together, as the client has read none of them yet."""
    instructions = "x" * (DEFAULT_LIMITS.max_message_bytes - ROOM_BYTES)
    async with (
        local_client(Engine.make(PolicySampler(program(model))), form=form) as client,
        client.rollout(model="m", input="hi", instructions=instructions) as rollout,
    ):
        response = await rollout.wait_ended()
    assert (response.status, rollout.text) == ("completed", "Read.")
