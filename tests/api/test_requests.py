"""Bodies of requests, as the engine takes them."""

from __future__ import annotations

import msgspec
import pytest

from windlass.api.requests import Body, CreateMember, CreateRun, PatchSchedule, PatchWebhook
from windlass.model import Key, Member, NewRun, Options


def test_every_member_of_a_run_to_create_reaches_the_engine() -> None:
    body = CreateRun(
        "mail", {"to": "ann"}, Options(priority=3), delay=5, checked=True, key=Key("k"), after=("run",), after_end="any", undefined="wait"
    )
    assert body.new_run(100) == NewRun("mail", {"to": "ann"}, Options(priority=3), 105, Key("k"), ("run",), "any", checked=True)


def test_a_member_of_a_group_waits_for_names() -> None:
    body = CreateMember("mail", scheduled_for="1970-01-01T00:00:00.100Z", name="b", after=("a",))
    assert body.member(5) == Member(NewRun("mail", due_at=100), "b", ("a",))


@pytest.mark.parametrize(
    ("kind", "text", "changes"),
    [
        (PatchSchedule, b'{"max_age": null, "overlap": "skip"}', {"max_age": None, "overlap": "skip"}),
        (PatchWebhook, b'{"jobs": ["mail"], "enabled": false}', {"jobs": ("mail",), "enabled": False}),
    ],
)
def test_changes_have_what_was_given_and_nothing_else(kind: type[Body], text: bytes, changes: dict[str, object]) -> None:
    assert msgspec.json.decode(text, type=kind).arguments() == changes
    for wrong in (b'{"id": 1}', b'{"enabled": "no"}'):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(wrong, type=kind)
