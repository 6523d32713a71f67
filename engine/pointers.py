"""How each client is told to come here: a few lines, the same where `serve` prints them, in its help and in the README.

The client tests run these very lines, those of npm aside. Imports nothing heavy, as the help needs it.
"""

import json
import shlex
from collections.abc import Iterator
from typing import Final, NamedTuple

DEFAULT_PLACE: Final = "127.0.0.1:8080"
DEFAULT_MODEL: Final = "default"
"""What is asked for where any name will do; `suspended call` asks for it unless told otherwise."""


class Pointer(NamedTuple):
    """One client's lines; `{at}` stands for the server's host and port, `{model}` for a model's name in double quotes.

    `{choice}` is the option that chooses it in a shell.
    """

    name: str
    client: str
    note: str
    language: str
    lines: str

    def at(self, place: str, model: str = DEFAULT_MODEL) -> str:
        """The lines for a server at `host:port` that has a model of that name."""
        choice = "" if model == DEFAULT_MODEL else f" --model {shlex.quote(model)}"
        quoted = json.dumps(model, ensure_ascii=False)[1:-1]  # right in TOML, Python and JavaScript alike
        return self.lines.replace("{at}", place).replace("{choice}", choice).replace("{model}", quoted)


POINTERS: Final = (
    Pointer(
        "codex",
        "Codex CLI",
        "in $CODEX_HOME/config.toml; the last line is for 0.107.0 only: the append form, with `_v2` the create form",
        "toml",
        """\
model = "{model}"
model_provider = "suspended"
model_providers.suspended = { name = "suspended", base_url = "http://{at}/v1", env_key = "KEY", wire_api = "responses", supports_websockets = true }
features.responses_websockets = true
""",
    ),
    Pointer(
        "openai",
        "openai-python",
        "the create form; over HTTP it is `client.responses.create(…)`",
        "python",
        """\
client = OpenAI(api_key=KEY, base_url="http://{at}/v1")
with client.responses.connect() as connection:
    connection.response.create(model="{model}", input="hello")
""",
    ),
    Pointer(
        "openai_agents",
        "openai-agents",
        "a model for the inject form, or a provider for the create form; over HTTP without its last argument",
        "python",
        """\
client = AsyncOpenAI(api_key=KEY, base_url="http://{at}/v1", websocket_base_url="ws://{at}/v1")
model = OpenAIHostedMultiAgentModel("{model}", client)
provider = OpenAIProvider(openai_client=client, use_responses=True, use_responses_websocket=True)
""",
    ),
    Pointer(
        "pydantic_ai",
        "pydantic-ai",
        "the create form; over HTTP without the settings",
        "python",
        """\
provider = OpenAIProvider(base_url="http://{at}/v1", api_key=KEY)
model = OpenAIResponsesModel("{model}", provider=provider)
agent = Agent(model, model_settings={"openai_transport": "websocket"})
""",
    ),
    Pointer(
        "openai_npm",
        "openai from npm",
        "the create form; needs Node 22",
        "js",
        """\
const client = new OpenAI({ apiKey: KEY, baseURL: "http://{at}/v1" });
const connection = new ResponsesWS(client);
connection.send({ type: "response.create", model: "{model}", input: "hello" });
""",
    ),
    Pointer(
        "ai_sdk",
        "AI SDK",
        "over HTTP; needs Node 24",
        "js",
        """\
const model = createOpenAI({ apiKey: KEY, baseURL: "http://{at}/v1" })("{model}");
""",
    ),
    Pointer(
        "frameworks",
        "langchain-openai and litellm",
        "over HTTP",
        "python",
        """\
model = ChatOpenAI(model="{model}", api_key=KEY, base_url="http://{at}/v1", use_responses_api=True)
answer = litellm.responses(model="openai/{model}", api_key=KEY, api_base="http://{at}/v1", input="hello")
""",
    ),
    Pointer(
        "shell",
        "suspended call",
        "one rollout; `--tool` gives it tools",
        "sh",
        "suspended call http://{at}/v1{choice} 'hello'\n",
    ),
)


def pointer(name: str) -> Pointer:
    """One client's. `KeyError`: there is none of that name."""
    return {found.name: found for found in POINTERS}[name]


def pointed(place: str, model: str = DEFAULT_MODEL) -> Iterator[str]:
    """All of them as lines of text, for a server at `host:port` and a model that it has."""
    for found in POINTERS:
        yield f"{found.client}, {found.note}:"
        yield ""
        yield from (f"    {line}" for line in found.at(place, model).splitlines())
        yield ""
