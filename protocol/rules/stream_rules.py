"""Rules about what one response says: framing, life, numbers, items, content, usage."""

from typing import Final

from protocol.rules.rule import ALL, SOCKET, Rule

T1: Final = Rule(
    "T1",
    "An SSE event line names its frame's type and [DONE] comes once, last; a socket carries JSON objects only.",
    "doc; openai/codex ends the stream at a binary frame",
    "A",
    ALL,
)
T2: Final = Rule(
    "T2",
    "No event type that the dialect does not have.",
    "own; openai/codex 0.108 waits out its idle time-out",
    "A E",
    ALL,
    engine_only=True,
)
R1: Final = Rule(
    "R1",
    "A response begins with response.created: not ended, without output, without usage.",
    "openai/openai-node#1984",
    "A",
    ALL,
)
R2: Final = Rule(
    "R2",
    "One created for a response and an HTTP stream, queued and in_progress at most once and before any output; no id comes again.",
    "mnfst/llm-gateway#2072",
    "A",
    ALL,
)
R3: Final = Rule(
    "R3",
    "A response has one terminal event, and after it only answers to injects and steers.",
    "openai/codex#41340, ollama/ollama#17118; rec",
    "A",
    ALL,
)
R4: Final = Rule(
    "R4",
    "The terminal event, the status, the error and the reason say the same.",
    "vllm-project/vllm#45386, openai/codex#24973",
    "A",
    ALL,
)
R5: Final = Rule(
    "R5",
    "Every embedded response has the same id, model, created_at and previous_response_id.",
    "Oaklight/llm-rosetta#56; rec",
    "A",
    ALL,
)
R6: Final = Rule(
    "R6",
    "An error inside an SSE stream is followed by response.failed; on a socket a create gets an error or a response, not both.",
    "doc; vllm-project/vllm#40418",
    "A",
    ALL,
)
R7: Final = Rule(
    "R7",
    "A refused create gets a typed error with its status; no create stays without an answer.",
    "Wei-Shaw/sub2api#5289; cli",
    "C",
    ALL,
)
R8: Final = Rule(
    "R8",
    "A stop for length ends as incomplete with max_output_tokens.",
    "vllm-project/agentic-api#273",
    "H",
    ALL,
    ("sampler_stop",),
)
N1: Final = Rule(
    "N1",
    "sequence_number counts 0, 1, 2, … over everything of a response, pauses and answers after its end included.",
    "ENTERPILOT/GoModel#953, Soju06/codex-lb#1359",
    "A",
    ALL,
)
N2: Final = Rule(
    "N2",
    "output_index counts the items, and every event of an item carries its index.",
    "openai/openai-python; BerriAI/litellm#21331",
    "A",
    ALL,
)
N3: Final = Rule(
    "N3",
    "content_index and summary_index count the parts of an item.",
    "openai/openai-python; lemonade-sdk/lemonade#3607",
    "A",
    ALL,
)
I1: Final = Rule(
    "I1", "An item is added before anything is said about it.", "BerriAI/litellm#22102", "A", ALL
)
I2: Final = Rule(
    "I2",
    "An item has one id, its own, in every event and in the final output.",
    "BerriAI/litellm#30072",
    "A",
    ALL,
)
I3: Final = Rule(
    "I3",
    "An added item has its required members, still empty, and a status that fits.",
    "openai/codex skips it; QuantumNous/new-api#7087",
    "A",
    ALL,
)
I4: Final = Rule(
    "I4",
    "Each added item is done once, completed; incomplete only as the last of an incomplete response.",
    "sgl-project/sglang#12652",
    "A",
    ALL,
)
I5: Final = Rule(
    "I5",
    "type, role, name and call_id of an item never change.",
    "bubbuild/republic#57",
    "A",
    ALL,
)
I6: Final = Rule(
    "I6",
    "The final output is the done items by index, unchanged but for sealed members.",
    "sgl-project/sglang#12653, vllm-project/vllm#38227",
    "A",
    ALL,
)
I7: Final = Rule(
    "I7",
    "A call_id is new in its rollout and in the chain before it.",
    "NousResearch/hermes-agent#111443",
    "A",
    ALL,
)
I8: Final = Rule("I8", "Nothing about an item after its done.", "diegosouzapw/OmniRoute#13693", "A", ALL)
I9: Final = Rule(
    "I9",
    "One item at a time is open.",
    "own; BerriAI/litellm#36356",
    "A E",
    ALL,
    engine_only=True,
)
I10: Final = Rule(
    "I10",
    "A create that repeats an item by id repeats the reasoning just before it, or is refused.",
    "openai/openai-dotnet#1050",
    "C",
    "hc",
    clients=True,
)
C1: Final = Rule(
    "C1",
    "Text follows the announcement of its part, and parts and messages begin empty.",
    "NousResearch/hermes-agent#119758, BerriAI/litellm#24445",
    "A",
    ALL,
)
C2: Final = Rule(
    "C2",
    "A part is added, written, its text done, closed: once each, before its item is done.",
    "ogx-ai/ogx#5309",
    "A",
    ALL,
)
C3: Final = Rule(
    "C3",
    "The deltas, the done text, the closed part and the item say the same text.",
    "openclaw/openclaw#142888, agentgateway/agentgateway#2281",
    "A",
    ALL,
)
C4: Final = Rule(
    "C4",
    "A delta is a string, of a kind that fits its part and item.",
    "vllm-project/vllm#35184",
    "A",
    ALL,
)
C5: Final = Rule(
    "C5",
    "Arguments begin empty, are what their deltas say in done and in the item, and are JSON for a function.",
    "Gitlawb/openclaude#1259",
    "A",
    ALL,
)
C6: Final = Rule(
    "C6",
    "One arguments or input done, after the deltas and before the item's done.",
    "maximhq/bifrost#7235",
    "A",
    ALL,
)
C8: Final = Rule(
    "C8",
    "A reasoning summary comes part by part, each added, written, done and closed, and is the item's summary.",
    "rec",
    "A",
    ALL,
)
C9: Final = Rule(
    "C9",
    "Annotations count from 0 inside an open part and are all in the closed one.",
    "rec",
    "A",
    ALL,
)
C10: Final = Rule(
    "C10",
    "Text has whole characters: no lone surrogate, no replacement character that the model did not write.",
    "tiann/hapi#1629, elizaOS/eliza#30904",
    "A",
    ALL,
)
C11: Final = Rule(
    "C11",
    "No control token of the model in text, not even spread over deltas.",
    "vllm-project/vllm#36445",
    "A",
    ALL,
    member="special_tokens",
)
U1: Final = Rule(
    "U1",
    "Usage is absent until reported, then whole numbers that add up.",
    "NVIDIA-NeMo/Gym#3313, envoyproxy/ai-gateway#2184",
    "A",
    ALL,
)
U2: Final = Rule(
    "U2",
    "One usage, at the end; in append one for each segment, and the segments add up to the rollout.",
    "openai/codex 0.99 to 0.107 adds them up; own",
    "A H",
    ALL,
)
U3: Final = Rule(
    "U3",
    "One usage record for each delivered response, under a key of its own.",
    "Wei-Shaw/sub2api#2923",
    "H E",
    ALL,
    ("usage_record",),
    engine_only=True,
)
U4: Final = Rule(
    "U4",
    "On an unbroken chain no fewer tokens are cached than for the parent, unless a reset is recorded.",
    "openai/codex#20301",
    "A E",
    SOCKET,
    engine_only=True,
)

STREAM_RULES: Final = (
    *(T1, T2),
    *(R1, R2, R3, R4, R5, R6, R7, R8),
    *(N1, N2, N3),
    *(I1, I2, I3, I4, I5, I6, I7, I8, I9, I10),
    *(C1, C2, C3, C4, C5, C6, C8, C9, C10, C11),
    *(U1, U2, U3, U4),
)
