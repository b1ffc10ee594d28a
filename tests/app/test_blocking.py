"""How a blocking class is written from its async twin."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from blocking import blocking_classes


def blocking(*methods: str, name: str = "AsyncThing") -> str:
    (text,) = blocking_classes([f"class {name}:\n" + "\n".join(f"    {line}" for line in methods)])
    return text


def test_an_awaited_call_runs_on_the_callers_thread() -> None:
    text = blocking("async def read(self) -> AsyncThing:", "    return AsyncThing(await self.verbs.get(self.id, 'é'), await f())")
    assert "class Thing:" in text
    assert "    def read(self) -> Thing:" in text
    assert "return Thing(run_sync(self.verbs.get(self.id, 'é')), run_sync(f()))" in text


def test_a_call_in_a_call_runs_first() -> None:
    assert "run_sync(f(run_sync(g())))" in blocking("async def read(self) -> int:", "    return await f(await g())")


def test_a_method_that_blocks_itself_is_only_called() -> None:
    text = blocking("async def read(self) -> None:", "    await self.read()", "    await self.app.read()", "    await self.verbs.read()")
    assert text.splitlines()[2:] == ["        self.read()", "        self.app.read()", "        run_sync(self.verbs.read())"]


def test_brackets_around_an_awaited_call_are_not_needed_any_more() -> None:
    assert "return run_sync(f(self)).state" in blocking("async def read(self) -> int:", "    return (await f(self)).state")


def test_a_block_and_a_pause_have_their_blocking_forms() -> None:
    text = blocking("async def read(self) -> None:", "    async with in_loop(self) as slot:", "        await asyncio.sleep(1)")
    assert text.splitlines()[2:] == ["        with on_thread(self) as slot:", "            nap(1)"]


def test_docstrings_speak_of_the_blocking_class_and_keep_what_is_not_about_it() -> None:
    text = blocking(
        "async def read(self) -> None:", '    """A thing of an AsyncApp, for coroutines: `async def` is a coroutine function."""'
    )
    assert '"""A thing of an App, for synchronous code: `async def` is a coroutine function."""' in text


def test_the_files_are_written_without_importing_them_which_may_fail_while_they_are_out_of_date() -> None:
    code = (
        "import sys, blocking as b; b.blocking_client(), b.blocking_app(); print({'windlass.app', 'windlass.client'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2] / "docs", capture_output=True, text=True, check=False)
    assert done.stdout == "set()\n", done.stderr
