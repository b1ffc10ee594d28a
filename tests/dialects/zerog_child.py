"""A runner in a process of its own, for tests that kill it. `python -m tests.dialects.zerog_child ADDRESS NAME FOLDER JOB [WEBHOOK]`.

Its handler leaves a line for each execution in a file of the folder. It ends when the job has ended.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from windlass.dialects.zerog import JobContext, JobRunner, WebhookConfig, backend, jobs

LEASE = 1_500
SECRET = "a secret of both sides"


async def main(address: str, name: str, folder: str, job_id: str, url: str | None = None) -> None:
    def note(context: JobContext, what: object) -> None:
        with open(Path(folder) / "executions", "a") as file:
            file.write(f"{context.job_id} {what}\n")

    async def work(context: JobContext) -> str:
        if context.input:
            await context.step("note", note, context, "step")
        note(context, context.attempt)
        return name

    webhook = None if url is None else WebhookConfig(url, SECRET, allow=("127.0.0.0/8",), plain_http=True)
    runner = JobRunner(backend=backend(address), name=name, lease_ms=LEASE, webhook=webhook)
    runner.register(jobs.define(name="resize", handler=work, backoff_ms=lambda n: 10))
    await runner.start(concurrency=2)
    await runner.wait_for(job_id, timeout_ms=60_000)
    await runner.stop()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
