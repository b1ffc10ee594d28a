"""What runs need of workers and resources, and which workers may take them."""

from __future__ import annotations

from msgspec.structs import asdict, replace

from windlass.model import SOLVER, Lane, Needs, Options, Requires, WorkerInfo


def merged(base: Options, over: Options) -> Options:
    """The options of a job, overridden by those of a creation."""
    return replace(base, **{name: value for name, value in asdict(over).items() if value is not None})


def needs_of(options: Options, handler: str | None = None) -> Needs:
    """What runs need, in the form of lanes: with sorted tags and uses, and their handler if it is not called like the job."""
    requires = options.requires or Requires()
    tags = {*requires.tags, SOLVER} if options.solver is not None else set(requires.tags)
    uses = sorted(options.uses or (), key=lambda use: (use.resource, use.per or ""))
    return Needs(tuple(sorted(tags)), requires.cores, requires.memory, tuple(uses), handler)


def lessened(job: Options, own_options: Options) -> str | None:
    """Something that runs of a job use or require, and that a run with these options would lack."""
    usual, own = needs_of(job), needs_of(merged(job, own_options))
    weights = {(use.resource, use.per): use.weight for use in own.uses}
    for use in usual.uses:
        if weights.get((use.resource, use.per), 0) < use.weight:
            return f"uses {use.resource!r}"
    for tag in sorted(set(usual.tags) - set(own.tags)):
        return f"requires the tag {tag!r}"
    for name in ("cores", "memory"):
        if getattr(own, name) < getattr(usual, name):
            return f"requires {name}"
    return None


def open_to(lane: Lane, worker: WorkerInfo) -> bool:
    """Whether a worker can and may take the runs of a lane. A run that brings a program needs no handler."""
    requires = lane.requires
    return (
        (worker.queues is None or lane.queue in worker.queues)
        and (worker.jobs is None or lane.handler in worker.jobs or (worker.programs and SOLVER in requires.tags))
        and set(requires.tags) <= set(worker.tags)
        and requires.cores <= worker.cores
        and requires.memory <= worker.memory
    )
