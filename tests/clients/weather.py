"""A model for the clients here: asks for the weather of three cities, one after the other or all at once."""

from engine.samplers.policy import Policy, Say, Script, Tools, Use, program

CITIES = ("Oslo", "Quito", "Perth")
ANSWER = "Oslo: wet. Quito: dry. Perth: hot."
WEATHER = {"Oslo": "wet", "Quito": "dry", "Perth": "hot"}


def weather_of(city: str) -> str:
    """What the clients' tool answers."""
    return WEATHER[city]


def _use(city: str) -> Use:
    return Use("get_weather", {"city": city})


def _summary(reports: list[str]) -> Say:
    return Say(" ".join(f"{city}: {report}." for city, report in zip(CITIES, reports, strict=True)))


def _ask_one_by_one(_prompt: str, _tools: Tools) -> Script:
    reports = []
    for city in CITIES:
        report = yield _use(city)
        reports.append(report)
    yield _summary(reports)


def _ask_together(_prompt: str, _tools: Tools) -> Script:
    reports = yield tuple(_use(city) for city in CITIES)
    yield _summary(list(reports))


one_by_one: Policy = program(_ask_one_by_one)
together: Policy = program(_ask_together)
