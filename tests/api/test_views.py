"""What is shown can be read back, and what is hidden is in no answer."""

from __future__ import annotations

import enum
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from msgspec.structs import replace

from windlass.answers import Occupants
from windlass.api import views
from windlass.api.codec import View
from windlass.api.values import from_rfc3339, to_rfc3339
from windlass.errors import BadInput
from windlass.limiters import limiter_key
from windlass.model import FOREVER, Listed, Run, Slot

VIEWS = {view.form.__name__: view for view in vars(views).values() if isinstance(view, View)}
AT = 1_767_225_600_123
_TEXTS = {
    "payload": '{"a":[1,null]}',
    "output": '"ok"',
    "progress": "0.5",
    "detail": '{"by":"me"}',
    "meta": '{"user":"ann"}',
    "url": "https://example.com",
}
_IN_SECRET = {"secrets", "paused_until"}  # shown as they are at a time
_NESTED: dict[Any, set[str]] = {Occupants: {"slots"}}  # which hide tokens in their turn
_EXPRESSIONS = {"kind": "cron", "expr": "0 3 * * *", "zone": "UTC"}


def sample(kind: Any, name: str = "", *, full: bool) -> Any:
    """A value of a type; where it may be None, it is unless it is to be full."""
    if get_origin(kind) in (Union, types.UnionType):
        inner = [one for one in get_args(kind) if one is not type(None)]
        return sample(inner[0], name, full=full) if full or len(inner) == len(get_args(kind)) else None
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    if get_origin(kind) in (tuple, list):
        return get_origin(kind)([sample(get_args(kind)[0], name, full=full)] if full else [])
    if get_origin(kind) is dict:
        return (
            {sample(get_args(kind)[0], full=full): 1 if get_args(kind)[1] is Any else sample(get_args(kind)[1], full=full)} if full else {}
        )
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return next(iter(kind))
    if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or hasattr(kind, "_fields")):
        return filled(kind, full=full)
    return {str: (_TEXTS | _EXPRESSIONS).get(name, name or "text"), int: AT, bool: True, float: 0.5}[kind]


def filled(kind: Any, *, full: bool) -> Any:
    return kind(**{name: sample(hint, name, full=full) for name, hint in get_type_hints(kind).items() if name[0] != "_"})


@pytest.mark.parametrize("full", [True, False], ids=["all that there can be", "only what there must be"])
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_record_comes_back_as_it_was_but_for_what_is_hidden(view: View[Any], full: bool) -> None:
    record = filled(view.record, full=full)
    sent = msgspec.json.encode(view.show(record))
    back = view.read(msgspec.json.decode(sent, type=view.form))
    names = getattr(record, "__struct_fields__", None) or record._fields
    lost = {name for name in names if getattr(record, name) != getattr(back, name)}
    assert lost <= {*view._hidden, *_NESTED.get(view.record, ())}
    assert msgspec.json.encode(view.show(back)) == sent or lost & _IN_SECRET


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_nothing_is_shown_of_what_is_hidden(view: View[Any]) -> None:
    shown = set(view.form.__struct_fields__)
    remade = {"key", "token", "attempt_id", "paused_until", "secrets", "schedule"}  # shown in another form, or to their owner only
    assert not shown & (set(view._hidden) - remade)


def test_secrets_leases_and_tokens_are_in_no_view() -> None:
    told = {name: set(view.form.__struct_fields__) for name, view in VIEWS.items()}
    assert [name for name, fields in told.items() if "token" in fields] == ["SlotView"]
    assert [name for name, fields in told.items() if fields & {"hash", "secret", "lease_until"}] == ["SlotView"]
    slot = filled(Slot, full=True)
    assert slot.token not in msgspec.json.encode(views.SLOT.show(replace(slot, token="never-told"))).decode()


def test_a_run_is_told_with_what_is_worked_out() -> None:
    run = replace(filled(Run, full=False), priority_key=-7, keep=FOREVER, instant=AT + 1, due_at=AT)
    view = views.RUN.show(run)
    assert (view.priority, view.keep, view.attempt_id) == (7, "forever", run.id)
    assert view.scheduled_for == to_rfc3339(AT + 1)
    assert view.due_at == to_rfc3339(AT)
    assert views.RUN.read(view).keep == FOREVER
    listed = Listed.of(run, {"payload": 100_000})
    assert (views.RUN.show(listed).left_out, views.RUN.show(listed).sizes) == (("payload",), {"payload": 100_000})
    assert views.RUN.read(views.RUN.show(listed)).sizes == {"payload": 100_000}  # type: ignore[attr-defined]


def test_a_slot_is_told_by_its_resource_and_its_key() -> None:
    slot = replace(filled(Slot, full=True), key=limiter_key("gpu", "a"))
    view = views.SLOT.show(slot)
    assert (view.resource, view.key) == ("gpu", "a")
    assert views.SLOT.read(view).key == slot.key


@pytest.mark.parametrize("text", ["", "now", "2026-01-31", "2026-01-31T03:00:00", "2026-13-01T00:00:00Z", "5"])
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"^due is .*, which is no instant\."):
        from_rfc3339(text, "due")


def test_an_instant_comes_back() -> None:
    assert from_rfc3339(to_rfc3339(AT), "at") == AT
    assert from_rfc3339("2026-01-01T01:00:00.123+01:00", "at") == AT
