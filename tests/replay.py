"""Two ways to run a program in the place of the model; the tests hold that they are one."""

import json
from collections.abc import Callable, Iterator

from engine.samplers.policy import Move, Tools, Use
from protocol.items import FunctionCall, FunctionCallOutput, Item, Message

PROMPT = "Make the tests pass."
Answer = Callable[[Use], str]


def moves_by_replay(made: Callable[..., list[Move]], answer: Answer, tools: Tools = ()) -> list[Move]:
    """Call a policy segment by segment, as the engine does, and return all of its moves."""
    items: list[Item] = [Message("user", PROMPT)]
    moves: list[Move] = []
    while True:
        segment = list(made(tuple(items), tools))
        moves.extend(segment)
        uses = [move for move in segment if isinstance(move, Use)]
        if not uses:
            return moves
        calls = [
            FunctionCall(f"c{len(items)}_{i}", u.name, json.dumps(u.arguments)) for i, u in enumerate(uses)
        ]
        items.extend(calls)
        items.extend(FunctionCallOutput(c.call_id, answer(u)) for c, u in zip(calls, uses, strict=True))


def moves_by_driving(script: Callable[..., Iterator], answer: Answer, tools: Tools = ()) -> list[Move]:
    """Run a script's generator once, giving it each output as it asks."""
    running, reply, moves = script(PROMPT, tools), None, []
    while True:
        try:
            move = running.send(reply)
        except StopIteration:
            return moves
        moves.extend(move if isinstance(move, tuple) else (move,))
        if isinstance(move, tuple):
            reply = tuple(answer(use) for use in move)
        else:
            reply = answer(move) if isinstance(move, Use) else None
