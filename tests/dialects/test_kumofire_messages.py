"""K: the queue message of Kumofire Jobs: what is read, what is dropped, what is returned."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.dialects.kumofire_door import StoreDoor
from windlass.dialects.kumofire import (
    ConsumeResult,
    MalformedMessage,
    UnsupportedVersion,
    build_message,
    parse_message,
)
from windlass.errors import StoreBusy

RUN = "01a1f0ad-a790-7739-95ab-e4c68ed225d3"
MALFORMED: dict[str, Any] = {
    "nothing": "", "no JSON": "{", "no text": b"\xff\xfe", "null": "null", "a list": [RUN], "a number": "7", "a text": RUN,
    "no id": {}, "another name": {"jobRunId": RUN}, "an empty id": build_message(""), "a number as id": {"kumofireJobRunId": 7},
    "an id with a space": build_message("a b"), "a long id": build_message("x" * 65), "an id of bytes": {"kumofireJobRunId": b"x"},
    "a job id": {"kumofireJobRunId": RUN, "jobId": "email"}, "a payload": {"kumofireJobRunId": RUN, "payload": {}},
    "a version as text": {"kumofireJobRunId": RUN, "version": "1"}, "true as version": {"kumofireJobRunId": RUN, "version": True},
    "10 MB": json.dumps({"kumofireJobRunId": RUN, "padding": "x" * 10_000_000}), "10 MB of bytes": b"[" * 10_000_000,
    "a name that is no text": {7: RUN},
}  # fmt: skip


class Delivered:
    """A message of a host."""

    def __init__(self, body: Any, *, later: bool = False) -> None:
        self.body, self.answers, self._later = body, list[str](), later

    def ack(self) -> Any:
        return self._answer("ack")

    def retry(self) -> Any:
        return self._answer("retry")

    def _answer(self, answer: str) -> Any:
        async def answered() -> None:
            self.answers.append(answer)

        return answered() if self._later else self.answers.append(answer)


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_K4_anything_else_is_no_message(body: Any) -> None:
    with pytest.raises(MalformedMessage) as refused:
        parse_message(body)
    assert len(str(refused.value)) < 300
    assert ("bytes" in str(refused.value)) == (isinstance(body, str | bytes) and len(body) > 1_024), "a large one is not even read"


@pytest.mark.parametrize("form", [dict, json.dumps, lambda message: json.dumps(message).encode()], ids=["object", "text", "bytes"])
@pytest.mark.parametrize("version", [False, True])
def test_K4_a_message_is_read_with_and_without_its_version(form: Any, version: bool) -> None:
    assert parse_message(form(build_message(RUN, version=version))) == RUN


@pytest.mark.parametrize("version", [0, 2, -1, 2**70])
def test_K4_another_version_is_refused(kumofire: StoreDoor, version: int) -> None:
    run_id = kumofire.create()
    with pytest.raises(UnsupportedVersion, match="version"):
        kumofire(kumofire.jobs.consume({"kumofireJobRunId": run_id, "version": version}))
    assert kumofire.calls == []
    assert kumofire.consume(run_id) == "succeeded"


def test_K22_a_malformed_message_is_dropped_by_the_consumer(kumofire: StoreDoor) -> None:
    for body in MALFORMED.values():
        assert kumofire(kumofire.jobs.consume(body)) == ConsumeResult("ignored", None)
    assert kumofire.do(kumofire.engine.runs()).runs == []


@pytest.mark.parametrize("later", [False, True], ids=["plain", "async"])
def test_a_batch_acknowledges_each_message_for_itself(kumofire: StoreDoor, later: bool) -> None:
    run_id, unknown = kumofire.create(), "00000000-0000-7000-8000-000000000000"
    bodies = [build_message(run_id), build_message(run_id), build_message(unknown), "{", {"kumofireJobRunId": run_id, "version": 2}]
    messages = [Delivered(body, later=later) for body in bodies]
    batch = kumofire(kumofire.jobs.consume_batch(messages))
    assert [message.answers for message in messages] == [["ack"], ["ack"], ["ack"], ["ack"], ["retry"]]
    assert batch.results == [ConsumeResult("succeeded", run_id), ConsumeResult("ignored", run_id), ConsumeResult("ignored", unknown)]
    assert (batch.processed, batch.acked, batch.retried, batch.malformed) == (3, 4, 1, 1)


def test_a_message_whose_run_could_not_be_stored_is_delivered_again(kumofire: StoreDoor) -> None:
    run_id = kumofire.create()
    acquire = kumofire.storage.acquire_lock

    async def busy(run_id: str, lease_ms: int) -> Any:
        kumofire.storage.acquire_lock = acquire  # type: ignore[method-assign]
        raise StoreBusy("The store is busy.", hint="Try again.")

    kumofire.storage.acquire_lock = busy  # type: ignore[method-assign]
    first, again = Delivered(build_message(run_id)), Delivered(build_message(run_id))
    assert kumofire(kumofire.jobs.consume_batch([first])).retried == 1
    assert kumofire(kumofire.jobs.consume_batch([again])).acked == 1
    assert (first.answers, again.answers, kumofire.status(run_id).status) == (["retry"], ["ack"], "succeeded")
