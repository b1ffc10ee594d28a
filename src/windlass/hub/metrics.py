"""Metrics for Prometheus, built anew for each scrape: there is no registry with state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from windlass import __version__
from windlass.machine import ENDED, UNFINISHED
from windlass.model import Counts, WorkerInfo
from windlass.store.records.stats import Total

PAIRS = 500
"""Pairs of queue and job that have their own series; all others share one, under empty names."""

METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

_PAIR = ("queue", "job")
_BY_PAIR = {
    "created": ("windlass_runs_created", "Runs that were created."),
    "started": ("windlass_attempts_started", "Attempts that a worker has claimed."),
    "attempts": ("windlass_attempts_ended", "Attempts that ended, with any outcome."),
    "retried": ("windlass_attempts_retried", "Attempts that failed or were lost, with a retry to come."),
    "returned": ("windlass_attempts_returned", "Attempts that were snoozed, requeued, or refused by one worker for another."),
    "lapsed": ("windlass_attempts_lapsed", "Attempts that were lost with their worker."),
}
_SECONDS = {
    "waited": ("windlass_queued_seconds", "Time that runs have spent in the queue."),
    "ran": ("windlass_running_seconds", "Time that attempts have run."),
}

Totals = tuple[Total, Mapping[tuple[str, str], Total]]


class Requests:
    """How many requests were answered, by method, route and status."""

    def __init__(self) -> None:
        self.numbers = Counter[tuple[str, str, str]]()

    def count(self, method: str, route: str | None, status: int) -> None:
        """Count one more. Unknown methods and routes are counted under an empty name, because any client can invent them."""
        self.numbers[method if method in METHODS else "", route or "", str(status)] += 1


class Families(Collector):
    """A set of metrics that collects lines for one scrape."""

    def __init__(self, *families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for some in self._families:
            yield from some


def text(accepted: str, *families: Iterable[Metric]) -> tuple[bytes, str]:
    """The metrics in the format that the scraper accepts, and its media type."""
    encode, media_type = choose_encoder(accepted)
    return encode(Families(*families)), media_type


def of_runs(totals: Totals) -> Iterator[Metric]:
    """Counts of runs. Unfinished states are gauges; final states are counters."""
    pairs = with_rest(totals)
    runs = GaugeMetricFamily("windlass_runs", "Runs that have not ended.", labels=("state", *_PAIR))
    ended = CounterMetricFamily("windlass_runs_ended", "Runs that have ended.", labels=("state", *_PAIR))
    for pair, total in pairs.items():
        for state in UNFINISHED:
            runs.add_metric((state.value, *pair), total.unfinished[state])
        for state in ENDED:
            ended.add_metric((state.value, *pair), getattr(total.counts, state))
    yield from (runs, ended)
    for field, (name, meaning) in _BY_PAIR.items():
        yield _counter(name, meaning, {pair: getattr(total.counts, field) for pair, total in pairs.items()})
    for field, (name, meaning) in _SECONDS.items():
        yield _counter(name, meaning, {pair: getattr(total.counts, field) / 1000 for pair, total in pairs.items()})


def _counter(name: str, meaning: str, numbers: Mapping[tuple[str, str], float]) -> Metric:
    family = CounterMetricFamily(name, meaning, labels=_PAIR)
    for pair, number in numbers.items():
        family.add_metric(pair, number)
    return family


def with_rest(totals: Totals) -> Mapping[tuple[str, str], Total]:
    """Each queue and job, and the sum of all others if there are more than the limit."""
    whole, listed = totals
    if len(listed) < PAIRS:
        return listed
    unfinished = {state: whole.unfinished[state] - sum(one.unfinished[state] for one in listed.values()) for state in UNFINISHED}
    counts = {
        name: getattr(whole.counts, name) - sum(getattr(one.counts, name) for one in listed.values()) for name in Counts.__struct_fields__
    }
    return {**listed, ("", ""): Total(unfinished, Counts(**counts))}


def of_workers(alive: Sequence[WorkerInfo]) -> Iterator[Metric]:
    """Live workers and their slots."""
    yield GaugeMetricFamily("windlass_workers", "Live workers.", len(alive))
    yield GaugeMetricFamily("windlass_worker_slots", "Runs that those workers can hold at once.", sum(worker.slots for worker in alive))


def of_hub(requests: Requests, *, streams: int, waiting: int, missing: Sequence[str]) -> Iterator[Metric]:
    """The hub itself: its requests, its waiting clients, and its parts that are not ready."""
    yield GaugeMetricFamily("windlass_hub_streams", "Streams of events that are open.", streams)
    yield GaugeMetricFamily("windlass_hub_waiting", "Requests that wait, such as long polls.", waiting)
    build = GaugeMetricFamily("windlass_build_info", "The version of windlass.", labels=("version",))
    build.add_metric((__version__,), 1)
    yield build
    parts = GaugeMetricFamily("windlass_hub_part_missing", "Parts of the hub that are not ready.", labels=("part",))
    for part in missing:
        parts.add_metric((part,), 1)
    yield parts
    answered = CounterMetricFamily("windlass_hub_requests", "Requests that were answered.", labels=("method", "route", "status"))
    for labels, number in requests.numbers.items():
        answered.add_metric(labels, number)
    yield answered


def of_process() -> Iterable[Metric]:
    """The process that the hub runs in."""
    return ProcessCollector(registry=None).collect()
