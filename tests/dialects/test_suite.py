"""The suite that every dialect must pass, passed by each of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from tests.dialects.forge_door import SECRET, ForgeDoor, run_id
from tests.dialects.guards_door import KEY, GuardsDoor
from tests.dialects.so1_door import UNKNOWN, So1
from tests.dialects.so1_schema import REFUSAL, validate
from tests.harness import Harness
from windlass.app import App
from windlass.dialects import guards, so1
from windlass.dialects.forge import WORDS
from windlass.model import NewRun, Run
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


class So1UnderTest(DialectDoor):
    """SO1, asked by an admin of an organisation."""

    words, queue = so1.WORDS, "so1"

    def __init__(self, h: Harness) -> None:
        self.door, self.engine = So1(h, mock=False, verify=lambda token: None), h.engine
        _, secret = h(h.engine.create_token("acme/ops", ("admin",)))
        self.credential, self.wrong = {"authorization": f"Bearer {secret}"}, {"authorization": "Bearer clerk_ann_acme"}
        self.door.headers, self.dialect = {}, self.door.dialect

    def ask(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = {}) -> DialectAnswer:
        """The answer without the id of its request, in which two equal ones differ."""
        answer = self.door(method, path, None, headers, raw=body)
        return DialectAnswer(answer.status, answer.body.partition(b',"job":')[2] or answer.body)

    def is_error(self, body: bytes) -> bool:
        validate(json.loads(body), REFUSAL)
        return True

    def path_of(self, run: Run) -> str:
        return f"/api/jobs/{run.id}"

    def word_in(self, body: bytes) -> str:
        return str(re.findall(rb'"state":"([a-z]+)"', body)[0], "ascii")

    def listed(self) -> set[str]:
        return {job["id"] for job in json.loads(self.get("/api/jobs").body)["data"]}

    def new_run(self, queue: str | None = None) -> NewRun:
        return replace(super().new_run(queue), meta={"requestId": UNKNOWN, "userId": "ann", "orgId": "acme"})


class GuardsUnderTest(DialectDoor):
    """The design guards, with an app for direct calls."""

    words, queue = guards.WORDS, "guards"

    def __init__(self, h: Harness) -> None:
        self.app = App(":memory:")
        for name in ("story", "research"):
            self.app.job(name=name)(nothing)
        self.door, self.engine = GuardsDoor(h, app=self.app), h.engine
        self.door.hub.authenticator.failures.limit = 1_000  # it has more verbs than an address has tries
        self.credential, self.wrong = {"x-api-key": KEY}, {"x-api-key": "another text"}
        self.door.headers, self.dialect = {}, self.door.dialect

    def ask(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = {}) -> DialectAnswer:
        answer = self.door(method, path, None, headers, raw=body)
        return DialectAnswer(answer.status, answer.body)

    def is_error(self, body: bytes) -> bool:
        error = json.loads(body)
        return error.keys() == {"detail"} and isinstance(error["detail"], str | list)

    def path_of(self, run: Run) -> str:
        return f"/jobs/{run.id}"

    def word_in(self, body: bytes) -> str:
        return str(json.loads(body)["status"])

    def listed(self) -> set[str]:
        return {job["job_id"] for job in json.loads(self.get("/jobs").body)["jobs"]}


def nothing() -> None:
    """The handler of direct calls, which take no arguments."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_forge(case: Case, h: Harness) -> None:
    under_test = ForgeUnderTest(h)
    case(under_test)
    under_test.door.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_so1(case: Case, h: Harness) -> None:
    under_test = So1UnderTest(h)
    case(under_test)
    under_test.door.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_guards(case: Case, h: Harness) -> None:
    under_test = GuardsUnderTest(h)
    case(under_test)
    under_test.door.close()
    under_test.app.close()
