"""What cannot be seen of a server from outside, each with the place that says so: the one table here that is typed."""

from typing import Final

import attrs

from demos.lab.peers_servers import AIMOCK_VERSION, LITELLM_VERSION, LLM_MOCK_VERSION


@attrs.frozen
class Contract:
    """How one server does its work."""

    server: str
    events: str
    text: str
    safety: str
    source: str


CONTRACTS: Final = (
    Contract(
        "this engine",
        "each token becomes an event when it is sampled; those that are ready are written together, up to a high-water mark "
        "above which the rollout waits for its client",
        "input and output are tokenized and counted; calls, tools and items are validated",
        "input and output are searched for known strings as they come",
        "engine/rollout.py, engine/stages.py, engine/sse.py, engine/corked.py",
    ),
    Contract(
        f"aimock {AIMOCK_VERSION}",
        "all events of the answer are made from a fixture before the first is sent, then each is written by itself; none waits "
        "for the client; a delay, if there is one, is a timer for each event",
        "none: the text is cut by characters, and usage is what the fixture says, else 0",
        "none",
        "the package's dist/responses.js, dist/sse-writer.js, dist/ws-responses.js",
    ),
    Contract(
        f"llm-mock-api {LLM_MOCK_VERSION}",
        "the answer of the first rule that matches is cut by characters and yielded event by event",
        "none: usage is a constant, unless a rule says it",
        "none",
        "the package's sse_writer.py, route_handler.py, formats/openai/responses/serialize.py",
    ),
    Contract(
        f"LiteLLM proxy {LITELLM_VERSION}",
        "each event of the server behind it is read, validated into an object, and written again; ids of responses are replaced "
        "by its own",
        "none of its own for a stream; costs are computed and logged after it",
        "guardrails, if they are configured; here none are",
        "the package's litellm/responses/streaming_iterator.py, litellm/proxy/response_api_endpoints",
    ),
)
