"""The part of docs/benchmarks.md about the race, and its chart: both are made from bench/race.json and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import quantiles
from typing import Any

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "bench" / "race.json"
PAGE = ROOT / "docs" / "benchmarks.md"
CHART = ROOT / "docs" / "images" / "race.svg"

Result = Mapping[str, Any]
"""The contents of bench/race.json."""

_PART = re.compile(r"(<!-- race: .*? -->\n).*?(<!-- end of race -->)", re.S)
_STORES = {"postgres": "PostgreSQL", "sqlite": "SQLite"}
_DRAINS = ("drain1", "drain2", "drain4")


def result() -> Result:
    """What was measured last."""
    return dict(json.loads(RESULT.read_text(encoding="utf-8")))


def write() -> None:
    """The page and the chart of the last result."""
    PAGE.write_text(page(), encoding="utf-8")
    CHART.write_text(chart(result()), encoding="utf-8")


def page() -> str:
    """The page as it is, with the tables of the last result."""
    return _PART.sub(lambda marks: f"{marks[1]}\n{tables(result())}\n\n{marks[2]}", PAGE.read_text(encoding="utf-8"))


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The first quartile, the median and the third."""
    low, middle, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else (values[0],) * 3
    return low, middle, high


def tables(race: Result) -> str:
    """Speeds, processor times and promises of all queues, the ratios, and who is left out."""
    parts = [_how(race), *(_speeds(race, store) for store in _STORES), _processors(race), _ratios(race), _promises(race), _left_out(race)]
    return "\n\n".join(part for part in parts if part)


def _how(race: Result) -> str:
    figures, kind = race["figures"], "A quick trial, not to be quoted: " if race["quick"] else ""
    rounds = max(len(measured["single"]["per_s"]) for measured in race["measured"].values() if "single" in measured)
    on = f"{figures['machine.cores']} cores of an {figures['machine.cpu']}, {figures['machine.system']}"
    server = f"PostgreSQL {figures['machine.postgres']}"
    return f"{kind}{rounds} round{'s' if rounds > 1 else ''} on {on}, {server}. Medians, with quartiles in brackets."


def _peers(race: Result, store: str | None = None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Those with figures, on one store or on both."""
    for name, peer in race["peers"].items():
        if race["measured"].get(name) and store in (None, peer["store"]):
            yield name, peer


def _speeds(race: Result, store: str) -> str:
    heads = (
        "single enqueue",
        "bulk enqueue",
        "drain, 1 worker",
        "2 workers",
        "4 workers",
        "latency p50, ms",
        f"first of {race['burst']:,}",
    )
    rows = [f"| {_STORES[store]}, jobs a second | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for name, peer in _peers(race, store):
        measured = race["measured"][name]
        cells = [_cell(measured, figure, "per_s", _speed) for figure in ("single", "bulk", *_DRAINS)]
        cells += [_cell(measured, "latency", "p50_ms", "{:.1f}".format), _cell(measured, "burst", "per_s", _speed)]
        rows.append(f"| {peer['title']} | {' | '.join(cells)} |")
    return "\n".join(rows) if len(rows) > 2 else ""


def _speed(value: float) -> str:
    return f"{value:,.0f}"


def _cell(measured: Mapping[str, Any], figure: str, kind: str, show: Callable[[float], str]) -> str:
    values = measured.get(figure, {}).get(kind, [])
    if len(values) < 2:
        return show(values[0]) if values else ""
    low, middle, high = map(show, quartiles(values))
    return f"{middle} ({low} to {high})"


def _processors(race: Result) -> str:
    heads = ("single: client", "server", *(f"drain, {figure[-1]}: {side}" for figure in _DRAINS for side in ("client", "server")))
    rows = [f"| processor time, µs a job | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for name, peer in _peers(race):
        sides = ("client_us", "server_us") if peer["store"] == "postgres" else ("client_us", "")
        cells = [_middle(race["measured"][name], figure, side) for figure in ("single", *_DRAINS) for side in sides]
        rows.append(f"| {peer['title']} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _middle(measured: Mapping[str, Any], figure: str, kind: str) -> str:
    values = measured.get(figure, {}).get(kind)
    return f"{quartiles(values)[1]:,.0f}" if values else ""


def _ratios(race: Result) -> str:
    figures = race["figures"]
    rows = ["| windlass over | single | bulk | drain, 1 worker | 2 workers | 4 workers | latency | burst |", "|---" * 8 + "|"]
    for name, peer in _peers(race):
        names = [f"race.{name}.{figure}.ratio" for figure in ("single", "bulk", *_DRAINS, "latency", "burst")]
        if any(each in figures for each in names):
            cells = [_ratio(figures, each) for each in names]
            rows.append(f"| {peer['title']} | {' | '.join(cells)} |")
    return "\n".join(rows) if len(rows) > 2 else ""


def _ratio(figures: Mapping[str, Any], name: str) -> str:
    spread = figures.get(f"{name}_quartiles")
    return f"{figures[name]:.2f}{f' ({spread})' if spread else ''}" if name in figures else ""


def _promises(race: Result) -> str:
    rows = ["| | versions | settings | jobs in a drain | delivery | what it keeps |", "|---" * 6 + "|"]
    for _, peer in _peers(race):
        versions = ", ".join(f"{name} {number}" for name, number in peer["versions"].items())
        rows.append(f"| {peer['title']} | {versions} | {peer['settings']} | {peer['jobs']:,} | {peer['delivery']} | {peer['keeps']} |")
    return "\n".join(rows)


def _left_out(race: Result) -> str:
    reasons = [f"{race['peers'][name]['title']} ({reason})" for name, reason in race["left_out"].items()]
    return f"Left out: {', '.join(reasons)}." if reasons else ""


# The chart: for each queue a bar for one, two and four workers, with a line from the first quartile to the third.

_WIDTH, _LEFT, _RIGHT, _BAR, _GAP, _TOP = 880, 240, 80, 11, 12, 56
_SHADES = {"drain1": "#1b6ca8", "drain2": "#5fa3d3", "drain4": "#a9cdea"}
_STYLE = """text { font: 13px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 11px } .title { font-size: 15px; font-weight: 600 }
line { stroke: #1f2328 } @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } line { stroke: #e6edf3 } }"""


def chart(race: Result) -> str:
    """Jobs a second in a drain, as a picture that needs neither a script nor a font."""
    rows = [(peer["title"], race["measured"][name]) for name, peer in _peers(race) if "drain1" in race["measured"][name]]
    most = max((max(measured[figure]["per_s"]) for _, measured in rows for figure in _DRAINS), default=1.0)
    scale, each = (_WIDTH - _LEFT - _RIGHT) / most, len(_DRAINS) * _BAR + _GAP
    height = _TOP + each * len(rows)
    parts = [_text(12, 22, "Jobs a second in a drain, by workers", "title"), *_legend()]
    for number, (title, measured) in enumerate(rows):
        top = _TOP + number * each
        parts.append(_text(_LEFT - 10, top + 2 * _BAR, title, anchor="end"))
        for place, figure in enumerate(_DRAINS):
            parts += _bar(top + place * _BAR, quartiles(measured[figure]["per_s"]), scale, _SHADES[figure])
    inside = "\n".join(parts)
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<style>{_STYLE}</style>\n{inside}\n</svg>\n'


def _legend() -> Iterator[str]:
    for place, (figure, shade) in enumerate(_SHADES.items()):
        left = _LEFT + 130 * place
        yield f'<rect x="{left}" y="33" width="11" height="11" fill="{shade}"/>'
        yield _text(left + 17, 43, f"{figure[-1]} worker{'s' if place else ''}", "small")


def _bar(top: int, values: tuple[float, float, float], scale: float, shade: str) -> Iterator[str]:
    low, middle, high = (value * scale for value in values)
    line = top + _BAR / 2
    yield f'<rect x="{_LEFT}" y="{top}" width="{middle:.1f}" height="{_BAR - 1}" fill="{shade}"/>'
    yield f'<line x1="{_LEFT + low:.1f}" y1="{line}" x2="{_LEFT + high:.1f}" y2="{line}"/>'
    yield _text(_LEFT + max(middle, high) + 6, top + 9, f"{values[1]:,.0f}", "small")


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'
