"""Which part is WebSocket, shown: a waterfall for each speed, and how much the order of the savings matters.

All of it is built from one result file of `demos.lab.ablate`.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from demos.lab import plots
from demos.lab.ablate import (
    ABLATION,
    ADDED,
    BYTES_PER_SECOND,
    PREAMBLE_BYTES,
    RTT_SECONDS,
    WINDOW_BYTES,
)
from demos.lab.model import SAVINGS
from demos.lab.report import Check, Report, Section, Table
from demos.lab.results import ResultsReader
from demos.lab.wording import percent, trust

ADDS_UP: Final = 1e-9

_TOOLS: Final = {"Z": "no tool time", "A": "tools as recorded", "B": "tools as TraceLab's"}
_NAMES: Final = {
    "connection": "connection kept",
    "bytes": "only what is new is sent",
    "validation": "only what is new is validated",
    "classification": "only what is new is classified",
    "tokenization": "only what is new is tokenized",
    "routing": "one response, opened once",
    "kv": "the model's state is kept",
    "overlap": "closing overlaps the tool",
}
METHOD: Final = (
    (
        "A saving's share is its mean effect over all orders in which the savings could have come (Shapley's value), exact over "
        "all sets; the shares of all add up to the whole difference."
    ),
    (
        "Times are modelled: a fit to real traffic gives decoding apart from the stated speed, prefill, the term in the "
        "context and the fixed part; the published overheads give what a response costs. "
        f"Network: {1e3 * RTT_SECONDS:g} ms round trip, {BYTES_PER_SECOND / 1e6:g} MB/s upwards, a first window of "
        f"{WINDOW_BYTES:,} bytes, {PREAMBLE_BYTES:,} bytes of tools and instructions with each response (assumed)."
    ),
    (
        "`none saved`: the term in the context can be saved by no form. `all saved`: it is work that a form saves, in three equal "
        "parts. The truth is between; nobody has published where."
    ),
    "Naive HTTP computes each prompt anew; warm HTTP keeps its connection and the model's state, as servers do today.",
)
NOT_MEASURED: Final = (
    "The savings by wall clock: `suspended lab ladder` measures the arms, each of which is a set of these savings.",
    "A grown window: a kept connection that sends its whole history is charged no round trips for it.",
)


def report_of(path: Path) -> Report:
    """The report of a result file; it is to be written beside it. `ResultsError`: the file is none."""
    reader = ResultsReader(path)
    notes = [*reader.notes()]
    found = sorted(
        {_name(note.detail): note.detail for note in notes if note.topic == ABLATION}.values(),
        key=lambda one: (one["given"] != "warm HTTP", one["scenario"] != "Z"),
    )
    return Report(
        title="Ablation: which part of the saving is WebSocket",
        header=reader.header,
        summary=(*_summary(found),),
        sections=(
            *(_waterfall(one, path.name) for one in found if _is_drawn(one)),
            *([_orders(found, path.name), _all(found, path.name), _arms(found, path.name)] if found else []),
        ),
        method=METHOD,
        checks=(_adds_up(found), *trust(reader.header, notes, ())),
        files=(path.name,),
        not_measured=NOT_MEASURED,
    )


def websocket_share(one: Mapping[str, Any]) -> float | None:
    """Of the whole saving, what the forms over WebSocket add to optimised HTTP; None: nothing is saved."""
    shares: Mapping[str, float] = one["shares_s"]
    whole = sum(shares.values())
    return sum(shares[saving] for saving in shares if saving in ADDED) / whole if whole else None


def _name(one: Mapping[str, Any]) -> str:
    return (
        f"{one['given']}, {one['tokens_per_second']:,g} tokens/s, {_TOOLS[one['scenario']]}, "
        f"work on the history: {one['history']}"
    )


def _is_drawn(one: Mapping[str, Any]) -> bool:
    """Has it a picture of its own? All are in the table; tools only make the bars at both ends longer."""
    return bool(one["scenario"] != "B" and (one["given"] == "warm HTTP" or one["history"] == "all saved"))


def _summary(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for given in dict.fromkeys(one["given"] for one in found):
        shares = [
            share for one in found if one["given"] == given and (share := websocket_share(one)) is not None
        ]
        if shares:
            yield (
                f"Of what all further savings are worth to {given}, {percent(min(shares))} to {percent(max(shares))} is what "
                "the forms over WebSocket add to optimised HTTP; the rest HTTP can have as well."
            )


def _waterfall(one: Mapping[str, Any], source: str) -> Section:
    shares: Mapping[str, float] = one["shares_s"]
    ordered = sorted(shares, key=lambda saving: -shares[saving])
    most = ordered[0]
    websocket = websocket_share(one)
    saved = one["without_s"] - one["with_all_s"]
    return Section(
        title=_name(one),
        sentence=f"{_name(one)}: all savings take {percent(saved / one['without_s'])} off the mean rollout; the largest part is "
        f"'{_NAMES[most]}' ({percent(shares[most] / saved)} of it), and what the forms over WebSocket add to optimised HTTP is "
        f"{percent(websocket)}."
        if websocket is not None
        else f"{_name(one)}: nothing is saved.",
        source=source,
        picture=plots.waterfall(
            (one["given"], one["without_s"]),
            [plots.Step(_NAMES[saving], -shares[saving], marked=saving in ADDED) for saving in ordered],
            "one suspended response",
            title=f"What each saving is worth, {_name(one)}",
            unit="s",
            marked="added by the forms over WebSocket",
        ),
        table=Table(
            (
                "saving",
                "added by WebSocket forms",
                "share, s",
                "share of all, %",
                "in order, s",
                "in reverse order, s",
            ),
            tuple(
                (
                    _NAMES[saving],
                    "yes" if saving in ADDED else "no",
                    shares[saving],
                    100 * shares[saving] / saved if saved else None,
                    one["in_order_s"][saving],
                    one["reverse_s"][saving],
                )
                for saving in shares
            ),
        ),
        caveat=f"Means of {one['rollouts']} modelled rollouts; a model has no interval. HTTP whose server keeps the responses need "
        "not send the whole history either; optimised HTTP here is stateless.",
    )


def _orders(found: Sequence[Mapping[str, Any]], source: str) -> Section:
    """The fixed order, the reverse and the mean of all, beside each other, at the place where they are farthest apart."""
    one = max(found, key=lambda each: max(map(abs, _apart(each).values())) / each["without_s"])
    apart = _apart(one)
    widest = max(apart, key=lambda saving: abs(apart[saving]))
    estimates = [
        plots.Estimate(
            _NAMES[saving],
            one["shares_s"][saving],
            min(one["in_order_s"][saving], one["reverse_s"][saving]),
            max(one["in_order_s"][saving], one["reverse_s"][saving]),
        )
        for saving in one["shares_s"]
    ]
    return Section(
        title="How much the order matters",
        sentence=f"The savings are not additive: '{_NAMES[widest]}' is worth {one['in_order_s'][widest]:.3g} s if it comes in "
        f"the fixed order and {one['reverse_s'][widest]:.3g} s in the reverse one ({_name(one)}).",
        source=source,
        picture=plots.intervals(
            estimates,
            title=f"Share of each saving, and its place in two orders, {_name(one)}",
            x_label="seconds of the mean rollout; the dot is the mean of all orders, the ends are two of them",
            level=0.0,
        ),
        table=Table(
            ("saving", "mean of all orders, s", "in order, s", "in reverse order, s"),
            tuple(
                (_NAMES[saving], one["shares_s"][saving], one["in_order_s"][saving], one["reverse_s"][saving])
                for saving in one["shares_s"]
            ),
        ),
        caveat="The fixed order is that of the table. Two orders are not all: the mean may lie outside of them.",
    )


def _apart(one: Mapping[str, Any]) -> dict[str, float]:
    return {saving: one["in_order_s"][saving] - one["reverse_s"][saving] for saving in one["shares_s"]}


def _all(found: Sequence[Mapping[str, Any]], source: str) -> Section:
    """Those without a picture, too."""
    best = max(found, key=lambda one: websocket_share(one) or 0.0)
    share = websocket_share(best)
    return Section(
        title="All of them",
        sentence="Nothing is saved."
        if share is None
        else f"What the forms over WebSocket add is the largest part, {percent(share)}, for {_name(best)}.",
        source=source,
        table=Table(
            (
                "where",
                "before, s",
                "after, s",
                "WebSocket, % of the saving",
                *(f"{_NAMES[one]}, s" for one in SAVINGS),
            ),
            tuple(
                (
                    _name(one),
                    one["without_s"],
                    one["with_all_s"],
                    None if (part := websocket_share(one)) is None else 100 * part,
                    *(one["shares_s"].get(saving) for saving in SAVINGS),
                )
                for one in found
            ),
        ),
        caveat="No data: that saving is there from the beginning.",
    )


def _arms(found: Sequence[Mapping[str, Any]], source: str) -> Section:
    arms = [*found[0]["arms"]]
    found = [one for one in found if one["given"] == found[0]["given"]]
    ratios = [1 - one["arms"]["append"] / one["arms"]["optimised"] for one in found]
    return Section(
        title="The arms, which are sets of these savings",
        sentence=f"Against optimised HTTP the suspended form saves between {percent(min(ratios))} and {percent(max(ratios))} here, "
        "by the model.",
        source=source,
        table=Table(
            ("speed, tools, history", *(f"{arm}, s" for arm in arms)),
            tuple(
                (_name(one).removeprefix(f"{one['given']}, "), *(one["arms"][arm] for arm in arms))
                for one in found
            ),
        ),
        caveat="Means of the modelled rollouts.",
    )


def _adds_up(found: Sequence[Mapping[str, Any]]) -> Check:
    name = "shares add up to the whole"
    if not found:
        return Check(name, None, "nothing was computed")
    apart = max(
        abs(sum(part.values()) - (one["without_s"] - one["with_all_s"])) / one["without_s"]
        for one in found
        for part in (one["shares_s"], one["in_order_s"], one["reverse_s"])
    )
    return Check(name, apart <= ADDS_UP, f"{apart:.1e} of the whole apart at most")
