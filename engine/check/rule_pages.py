"""`suspended check --explain RULE` and `--list`: the rules, to read."""

import textwrap
from difflib import get_close_matches
from typing import Final

from engine.check.rule_examples import EXAMPLES
from protocol.invariants import PROFILES, RULES, Rule

_WIDTH: Final = 100
_SCOPES: Final = {
    "A": "what the server sends is enough",
    "C": "what the client sends is needed",
    "H": "hook records are needed",
    "E": "our own decision",
}
_FORMS: Final = {"h": "http", "c": "create", "i": "inject", "a": "append"}
_LEGEND: Final = (
    "created#0: sequence number 0; added[1]: output index 1; d: text delta; fc(c1): function call; "
    "rd: response.done; =>: from the client; {…}: hook; !: what is wrong"
)


def page(name: str) -> str:
    """All about a rule. `ValueError`: there is none of this name."""
    rule = RULES.get(name.upper())
    if rule is None:
        near = get_close_matches(name.upper(), list(RULES), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(f"--explain: no rule {name!r}; {hint}--list shows all {len(RULES)}")
    example, why = EXAMPLES[rule.id]
    parts = {
        "": rule.statement,
        "why:": f"{why[0].upper()}{why[1:]}.",
        "breaks it:": example,
        "read as:": _LEGEND,
        "scope:": "; ".join(f"{letter}: {_SCOPES.get(letter, '?')}" for letter in rule.scope.split()),
        "forms:": _forms(rule),
        "profiles:": _profiles(rule),
        "needs:": _needs(rule),
        "source:": rule.source,
    }
    return "\n".join(
        textwrap.fill(
            text,
            width=_WIDTH,
            initial_indent=f"{label or rule.id:11} ",
            subsequent_indent=" " * 12,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for label, text in parts.items()
    )


def table() -> str:
    """A line for each rule: id, scope, forms, profiles, and what it says."""
    rows = [("rule", "scope", "forms", "profiles", "statement")]
    rows += [(rule.id, rule.scope, _forms(rule), _profiles(rule), rule.statement) for rule in RULES.values()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _forms(rule: Rule) -> str:
    if set(rule.dialects) >= set(_FORMS):
        return "all"
    return " ".join(words for letter, words in _FORMS.items() if letter in rule.dialects)


def _profiles(rule: Rule) -> str:
    profiles = [profile for profile in PROFILES if rule.holds_in(profile)]
    return "all" if len(profiles) == len(PROFILES) else " ".join(profiles)


def _needs(rule: Rule) -> str:
    """Of the trace: without it the rule is not evaluated."""
    needs = [f"the hook {hook}" for hook in rule.hooks]
    needs += [f"{rule.member!r} in the header"] if rule.member else []
    return ", ".join(needs) or "no hook"
