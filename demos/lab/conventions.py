"""The names of OpenTelemetry's conventions for generative AI that the lab uses, in one place: they are still in development.

A test holds them against the package `opentelemetry-semantic-conventions`; what that does not have yet is marked here.
"""

from collections.abc import Mapping
from typing import Final

import attrs

INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
OPERATIONS: Final = (INVOKE_AGENT, CHAT, EXECUTE_TOOL)

PROVIDER: Final = "openai"
"""It tells which flavour of telemetry this is, not who runs the model: the API is that one's."""
FUNCTION_TOOL: Final = "function"

AGENT_NAME: Final = "gen_ai.agent.name"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CALL_ID: Final = "gen_ai.tool.call.id"
ERROR_TYPE: Final = "error.type"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
MAX_TOKENS: Final = "gen_ai.request.max_tokens"
OPERATION: Final = "gen_ai.operation.name"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
PROVIDER_NAME: Final = "gen_ai.provider.name"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
SERVICE_INSTANCE: Final = "service.instance.id"
SERVICE_NAME: Final = "service.name"
STREAM: Final = "gen_ai.request.stream"
TEMPERATURE: Final = "gen_ai.request.temperature"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOP_P: Final = "gen_ai.request.top_p"
ATTRIBUTES: Final = (
    *(AGENT_NAME, CACHED_TOKENS, CALL_ID, ERROR_TYPE, FINISH_REASONS, INPUT_TOKENS, MAX_TOKENS, OPERATION),
    *(OUTPUT_TOKENS, PROVIDER_NAME, REASONING_TOKENS, REQUEST_MODEL, RESPONSE_ID, RESPONSE_MODEL),
    *(SERVICE_INSTANCE, SERVICE_NAME, STREAM, TEMPERATURE, TIME_TO_FIRST_CHUNK, TOOL_NAME, TOOL_TYPE, TOP_P),
)
"""All that a span, a measurement or a resource of the lab may have."""


@attrs.frozen
class Metric:
    """A histogram of seconds."""

    name: str
    description: str
    is_in_package: bool = True


BOUNDARIES_S: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Of all of them, as the conventions say."""

METRICS: Final[Mapping[str, Metric]] = {
    "duration": Metric("gen_ai.client.operation.duration", "From the request to the end of the answer."),
    "first_chunk": Metric(
        "gen_ai.client.operation.time_to_first_chunk", "From the request to the first piece of the answer."
    ),
    "chunk": Metric(
        "gen_ai.client.operation.time_per_output_chunk", "From each piece of the answer to the next."
    ),
    "tool": Metric("gen_ai.execute_tool.duration", "From a call to its output.", is_in_package=False),
}
