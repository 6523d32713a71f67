"""Rules about several responses, both directions and time: connections, suspension, durability, resources."""

from typing import Final

from protocol.rules.rule import ALL, PAUSING, SOCKET, Rule

W1: Final = Rule(
    "W1", "A lane samples one response at a time; a second create waits for it.", "doc", "C", SOCKET
)
W2: Final = Rule(
    "W2",
    "Everything of a response carries the stream_id of its create, or none when that had none.",
    "vllm-project/agentic-api#239",
    "A C",
    SOCKET,
)
W3: Final = Rule(
    "W3",
    "Each response counts from 0; an error frame of the connection takes no number and changes nothing.",
    "doc",
    "A",
    SOCKET,
)
W4: Final = Rule(
    "W4",
    "The latest response of a lane is found as a parent; an id that is neither cached nor stored is not.",
    "Soju06/codex-lb#782, router-for-me/CLIProxyAPI#4524",
    "C",
    SOCKET,
)
W5: Final = Rule(
    "W5",
    "A failed continuation evicts its parent, when that is its own lane's latest; nothing else does.",
    "openresponses/openresponses#71",
    "C",
    SOCKET,
)
W6: Final = Rule(
    "W6",
    "A parent of another connection (unstored) or of another key is not found, in the same words as an unknown one.",
    "BerriAI/litellm#39559",
    "C",
    ALL,
)
W7: Final = Rule(
    "W7",
    "A warm-up completes without output and without output tokens.",
    "router-for-me/CLIProxyAPI#6006",
    "C",
    "c",
)
W8: Final = Rule(
    "W8",
    "Nothing of a former response once the next of its lane began.",
    "NVIDIA/NeMo-Agent-Toolkit#500, stippi/code-assistant#200",
    "A",
    SOCKET,
)
W9: Final = Rule(
    "W9",
    "The age limit of a connection cuts no response that samples.",
    "earendil-works/pi#6268",
    "H",
    SOCKET,
    ("connection_close",),
)
W10: Final = Rule(
    "W10",
    "A frame sent right after the upgrade is handled.",
    "sxueck/llm-gateway#25",
    "C H",
    SOCKET,
    ("connection_open",),
)
W11: Final = Rule(
    "W11",
    "The same rollout says the same in every form.",
    "own",
    "A E",
    ALL,
    engine_only=True,
    member="group",
)
W12: Final = Rule(
    "W12",
    "A failed fork to another lane leaves its parent usable.",
    "doc; openai/openai-dotnet#1383",
    "C",
    "c",
)
W13: Final = Rule(
    "W13",
    "Outputs in a create match calls of the chain, and every open call of the parent is answered; else it is refused.",
    "Wei-Shaw/sub2api#2098, router-for-me/CLIProxyAPI#2596",
    "C",
    "hc",
)
W14: Final = Rule(
    "W14",
    "A create without a parent inherits nothing.",
    "router-for-me/CLIProxyAPI#5811",
    "C H E",
    SOCKET,
    ("context",),
    engine_only=True,
)
W15: Final = Rule(
    "W15",
    "Each steer is accepted, pending or failed; failed gives the input back, accepted leads to a successor.",
    "doc (openai/openai-python)",
    "C",
    "c",
)
S1: Final = Rule(
    "S1",
    "response.done only in append, while sampling, all items closed and a client call open; once for each pause.",
    "openai/codex; decolua/9router#2142",
    "A",
    ALL,
)
S2: Final = Rule(
    "S2", "response.done ends nothing, and append completes no response with open calls.", "cli", "A", "a"
)
S3: Final = Rule("S3", "A suspended response is silent.", "own", "A H", PAUSING)
S4: Final = Rule(
    "S4",
    "A batch of outputs is taken whole or not at all, and a refused one changes nothing and comes back as it was.",
    "rec; openai/gpt-oss#309",
    "C",
    PAUSING,
)
S5: Final = Rule(
    "S5", "The kind of an output fits the kind of its call.", "open-webui/open-webui#29630", "C", PAUSING
)
S6: Final = Rule(
    "S6",
    "A response resumes with the last output, not before.",
    "openai/openai-agents-js#1458",
    "C",
    PAUSING,
)
S7: Final = Rule(
    "S7",
    "The first output of a call counts; a second is refused, and a first never taken for one.",
    "rec; qxcnm/Codex-Manager#458",
    "C",
    PAUSING,
)
S8: Final = Rule(
    "S8",
    "An output is taken from its call's done on until the response ends; refusals have the code for their reason.",
    "rec; vllm-project/agentic-api#300",
    "C",
    PAUSING,
)
S10: Final = Rule(
    "S10",
    "pre_inference and post_inference run once for each rollout, before its output and before its end.",
    "doc; BerriAI/litellm#40846",
    "A H",
    ALL,
    ("pre_inference", "post_inference"),
)
S11: Final = Rule(
    "S11", "Outputs enter the context in the order of their calls.", "own", "A H", PAUSING, ("resume",)
)
S12: Final = Rule("S12", "Outputs of client tools are input, never output items.", "rec", "A", ALL)
S13: Final = Rule(
    "S13",
    "A suspended response resumes or ends within its deadline.",
    "own",
    "A H E",
    PAUSING,
    engine_only=True,
    member="suspend_deadline_s",
)
S14: Final = Rule("S14", "A confirmed cancel ends as cancelled.", "SamSaffron/term-llm#789", "C", ALL)
S15: Final = Rule(
    "S15",
    "A replay has the same events from where it was asked, without a hole.",
    "openai/openai-node#2671",
    "A H",
    ALL,
    ("attach",),
)
S16: Final = Rule(
    "S16",
    "After a lost connection sampling stops within a second (memory), or runs on to its pause or end (durable).",
    "vllm-project/vllm#54947; own",
    "A H",
    ALL,
    ("connection_close",),
)
S17: Final = Rule(
    "S17",
    "Only the newest attachment of a response may append.",
    "own",
    "C H E",
    "a",
    ("attach", "accepted"),
    engine_only=True,
)
S19: Final = Rule("S19", "An output goes only to the response whose call it answers.", "own", "C", "i")
S20: Final = Rule(
    "S20",
    "Every append and inject has one outcome, in order of arrival.",
    "vllm-project/agentic-api#300; cli",
    "C",
    PAUSING,
)
S21: Final = Rule(
    "S21",
    "A bound on rounds or tool calls ends as incomplete.",
    "own",
    "H",
    ALL,
    ("sampler_stop",),
)
S22: Final = Rule("S22", "An output in response.done is the items done so far.", "own", "A", "a")
S23: Final = Rule("S23", "Each resume ends one suspension.", "own", "H", PAUSING, ("suspend", "resume"))
S24: Final = Rule(
    "S24",
    "No append after response.done is refused as too early.",
    "own",
    "C E",
    "a",
    engine_only=True,
)
S25: Final = Rule(
    "S25",
    "An append, inject, steer or cancel is answered within a second.",
    "vllm-project/agentic-api#300",
    "C E",
    SOCKET,
    engine_only=True,
)
D1: Final = Rule(
    "D1",
    "An output is journaled before it is accepted, and a restart finds the pending calls and numbers as they were.",
    "own",
    "H E",
    ALL,
    ("journal",),
    engine_only=True,
)
D2: Final = Rule(
    "D2",
    "An event is journaled before it is sent.",
    "SamSaffron/term-llm#878",
    "A H E",
    ALL,
    ("journal",),
    engine_only=True,
)
L1: Final = Rule(
    "L1",
    "A slot is free within 0.1 s of its response's end.",
    "BerriAI/litellm#40846",
    "A H E",
    ALL,
    ("slot_release",),
    engine_only=True,
)
L2: Final = Rule(
    "L2",
    "No buffer holds more than its limit.",
    "MAXeaglet/commandcode-proxy#20",
    "H E",
    ALL,
    ("buffer",),
    engine_only=True,
)

SESSION_RULES: Final = (
    *(W1, W2, W3, W4, W5, W6, W7, W8, W9, W10, W11, W12, W13, W14, W15),
    *(
        S1,
        S2,
        S3,
        S4,
        S5,
        S6,
        S7,
        S8,
        S10,
        S11,
        S12,
        S13,
        S14,
        S15,
        S16,
        S17,
        S19,
        S20,
        S21,
        S22,
        S23,
        S24,
        S25,
    ),
    *(D1, D2, L1, L2),
)
