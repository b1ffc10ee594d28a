"""The suite that every dialect must pass, passed by each of them."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from tests.dialects.forge_door import SECRET, ForgeDoor, run_id
from tests.harness import Harness
from windlass.dialects.forge import WORDS
from windlass.model import Run
from windlass.testing.dialects import CASES, Case, DialectAnswer, DialectDoor


class ForgeUnderTest(DialectDoor):
    """The Forge job queue."""

    words, queue = WORDS, "forge"

    def __init__(self, h: Harness) -> None:
        self.door, self.engine = ForgeDoor(h), h.engine
        self.credential, self.wrong = {"authorization": f"Bearer {SECRET}"}, {"authorization": "Bearer another text"}
        self.door.headers, self.dialect = {}, self.door.dialect

    def ask(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = {}) -> DialectAnswer:
        answer = self.door(method, path, None, headers, raw=body)
        return DialectAnswer(answer.status, answer.body)

    def is_error(self, body: bytes) -> bool:
        error = json.loads(body)
        return error.keys() == {"error"} and isinstance(error["error"], str)

    def path_of(self, run: Run) -> str:
        return f"/api/jobs/{run.id.replace('-', '')}"

    def word_in(self, body: bytes) -> str:
        return str(json.loads(body)["status"])

    def listed(self) -> set[str]:
        return {run_id(row["id"]) for row in json.loads(self.get("/api/jobs").body)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_forge(case: Case, h: Harness) -> None:
    under_test = ForgeUnderTest(h)
    case(under_test)
    under_test.door.close()
