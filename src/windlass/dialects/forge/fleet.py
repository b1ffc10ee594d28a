"""The fleet: what nodes measure of themselves, in the memory of the hub that they send it to."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from windlass.clock import Clock
from windlass.engine import checks
from windlass.errors import LimitReached, NotFound, TooLarge

NODES, SNAPSHOTS, SHOWN = 1_000, 360, 60
"""Nodes of a fleet, snapshots of each that are kept, and those of them in the description of a node."""
SNAPSHOT = 16 * 1024
KEPT = 64 * 1024 * 1024
"""Bytes of one snapshot, and of all together: beyond it, the node with most of them loses its oldest."""
ONLINE, DEGRADED = 15_000, 60_000
"""Milliseconds of silence within which a node is online, and degraded."""
THROTTLE, KEEP_ALIVE = 2.0, 15.0
"""Seconds between two frames about one node, and between two signs of life of a stream."""
METRICS, METRICS_EVERY, METRICS_DEEP, LARGEST = 64, 15_000, 4, 2**63
"""Numbers that are stored of a node, milliseconds between two writes, how deep they are looked for, and what they are below."""

_encode = msgspec.json.Encoder().encode

Snapshot = Mapping[str, Any]
NodeStatus = Literal["online", "degraded", "offline"]


class NodeView(Struct, frozen=True, rename={"last_seen": "lastSeen"}):
    """A node as clients get it."""

    id: str
    name: str
    last_seen: int
    status: NodeStatus
    latest: Raw | None
    history: list[Raw]


class FleetNode:
    """A node, and its latest snapshots as JSON text."""

    def __init__(self, node_id: str) -> None:
        self.id, self.name, self.last_seen, self.ticks = node_id, node_id, 0, 0
        self.snapshots = deque[bytes]()
        self.size, self.received = 0, 0
        self.metrics_at: int | None = None

    def add(self, snapshots: Iterable[bytes]) -> None:
        for snapshot in snapshots:
            self.snapshots.append(snapshot)
            self.size += len(snapshot)
            self.received += 1
            if len(self.snapshots) > SNAPSHOTS:
                self.drop_oldest()

    def drop_oldest(self) -> None:
        self.size -= len(self.snapshots.popleft())

    def status(self, ticks: int) -> NodeStatus:
        silence = ticks - self.ticks
        return "online" if silence < ONLINE else "degraded" if silence < DEGRADED else "offline"

    def view(self, ticks: int) -> NodeView:
        history = self.latest(SHOWN)
        return NodeView(self.id, self.name, self.last_seen, self.status(ticks), history[-1] if history else None, history)

    def latest(self, count: int) -> list[Raw]:
        """The last snapshots, oldest first."""
        return [Raw(snapshot) for snapshot in list(self.snapshots)[-count:]] if count else []


class Fleet:
    """The nodes that have sent snapshots to this hub."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.size = clock, 0
        self._nodes: dict[str, FleetNode] = {}
        self._watchers = set[asyncio.Event]()

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def watchers(self) -> int:
        """How many streams are open."""
        return len(self._watchers)

    def add(self, node_id: str, name: str | None, snapshots: Sequence[Snapshot]) -> bool:
        """Keep snapshots of a node. Returns whether its metrics are due to be stored."""
        for text in (node_id, name or node_id):
            checks.name(text, "The name of a node")
        texts = [_text(snapshot) for snapshot in snapshots[-SNAPSHOTS:]]
        node = self._nodes.get(node_id) or self._new(node_id)
        node.name, node.last_seen, node.ticks = name or node.name, self.clock.now(), self.clock.monotonic()
        before = node.size
        node.add(texts)
        self.size += node.size - before
        self._shrink()
        for bell in self._watchers:
            bell.set()
        is_due = bool(texts) and (node.metrics_at is None or node.ticks - node.metrics_at >= METRICS_EVERY)
        node.metrics_at = node.ticks if is_due else node.metrics_at
        return is_due

    def views(self) -> list[NodeView]:
        """All nodes, by their ids."""
        ticks = self.clock.monotonic()
        return [self._nodes[node_id].view(ticks) for node_id in sorted(self._nodes)]

    def snapshots(self, node_id: str, count: int) -> list[Raw]:
        """The last snapshots of a node, oldest first."""
        return self._get(node_id).latest(count)

    async def frames(self, node_id: str | None = None) -> AsyncIterator[bytes]:
        """The current state of all nodes or of one as frames of a stream, then each node again when it has changed."""
        if node_id is not None:
            self._get(node_id)
        bell, sent = asyncio.Event(), dict[str, tuple[int, NodeStatus]]()
        self._watchers.add(bell)
        try:
            yield b": fleet\n\n"
            while True:
                bell.clear()
                changed = False
                for node in self._watched(node_id):
                    ticks = self.clock.monotonic()
                    state = node.received, node.status(ticks)
                    if sent.get(node.id) != state:
                        sent[node.id], changed = state, True
                        yield b"data: %b\n\n" % _encode(node.view(ticks))
                if changed:
                    await self.clock.sleep(THROTTLE)
                elif not await _rung(bell):
                    yield b":\n\n"
        finally:
            self._watchers.discard(bell)

    def _watched(self, node_id: str | None) -> list[FleetNode]:
        return [node for key, node in sorted(self._nodes.items()) if node_id in (None, key)]

    def _get(self, node_id: str) -> FleetNode:
        node = self._nodes.get(node_id)
        if node is None:
            raise NotFound(f"There is no node {node_id!r:.80}.", hint="GET /api/fleet lists them.")
        return node

    def _new(self, node_id: str) -> FleetNode:
        """Another node; the one that has been offline for longest makes room."""
        if len(self._nodes) >= NODES:
            oldest = min(self._nodes.values(), key=lambda node: node.ticks)
            if oldest.status(self.clock.monotonic()) != "offline":
                raise LimitReached(f"This hub keeps {NODES:,} nodes.", hint="Stop some of them, or use another hub for others.")
            self.size -= self._nodes.pop(oldest.id).size
        node = self._nodes[node_id] = FleetNode(node_id)
        return node

    def _shrink(self) -> None:
        while self.size > KEPT:
            largest = max(self._nodes.values(), key=lambda node: node.size)
            before = largest.size
            largest.drop_oldest()
            self.size -= before - largest.size


async def _rung(bell: asyncio.Event) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(KEEP_ALIVE):
            return await bell.wait()
    return False


def _text(snapshot: Snapshot) -> bytes:
    text = _encode(snapshot)
    if len(text) > SNAPSHOT:
        raise TooLarge(f"A snapshot has {len(text):,} bytes; the limit is {SNAPSHOT:,}.", hint="Send fewer measurements.")
    return text


def metrics_of(snapshot: Snapshot) -> dict[str, int | float]:
    """The numbers of a snapshot as metrics of a worker; those inside objects under names with dots."""
    names: dict[str, int | float] = {}
    for name, number in _numbers(snapshot, "", METRICS_DEEP):
        if len(names) == METRICS:
            break
        if len(name) <= 128 and name.isprintable():
            names[name] = number
    return names


def _numbers(members: Snapshot, prefix: str, depth: int) -> Iterator[tuple[str, int | float]]:
    for name, value in members.items():
        if type(value) in (int, float) and abs(value) < LARGEST:
            yield prefix + name, value
        elif isinstance(value, dict) and depth:
            yield from _numbers(value, f"{prefix}{name}.", depth - 1)
