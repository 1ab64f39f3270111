"""The alerts of conf/monitoring, evaluated over what a process exposes.

Of Prometheus' language it knows what these need: a comparison of a metric, or of its rate, with a
number, and several of them joined by `or`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["firing", "recommended"]

_RULES: Final = Path(__file__).parents[3] / "conf" / "monitoring" / "alerts.yml"
_ALERT: Final = re.compile(r"^ +- alert: (\w+)\n(?: +#.*\n)* +expr: (.+)$", re.MULTILINE)
_TERM: Final = re.compile(
    r'(?P<rate>rate\()?(?P<name>\w+)(\{(?P<label>\w+)="(?P<value>\w+)"\})?(\[5m\]\))?'
    r" (?P<operator>==|!=|>|<) (?P<bound>[0-9.e]+)"
)
_COMPARE: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def recommended() -> dict[str, str]:
    """Name and expression of each alert."""
    return dict(_ALERT.findall(_RULES.read_text(encoding="utf-8")))


def firing(before: str, now: str) -> set[str]:
    """Which alerts fire; those over histograms are left out, and what is not exposed fires none.

    Args:
        before, now: what two scrapes gave, for rates.
    """
    scrapes = _samples(before), _samples(now)
    return {
        name
        for name, expression in recommended().items()
        if "histogram_quantile" not in expression
        and any(_holds(term, *scrapes) for term in expression.split(" or "))
    }


def _samples(text: str) -> Samples:
    found = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return {**found, ("up", frozenset({("job", "rmqstore")})): 1.0}


def _holds(term: str, before: Samples, now: Samples) -> bool:
    parts = _TERM.fullmatch(term)
    assert parts is not None, f"{term} is more than this can evaluate"
    wanted = {(parts["label"], parts["value"])} if parts["label"] else set()
    values = [
        value - (before[key] if parts["rate"] else 0)
        for key, value in now.items()
        if key[0] == parts["name"] and wanted <= key[1] and (not parts["rate"] or key in before)
    ]
    return any(_COMPARE[parts["operator"]](value, float(parts["bound"])) for value in values)
