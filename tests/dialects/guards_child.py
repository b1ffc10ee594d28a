"""A process with a scheduler of the design guards: `python -m tests.dialects.guards_child FOLDER ADDRESS`.

Its jobs and direct calls write to one log, which all processes share. It does what the lines of its standard input say.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from windlass.dialects.guards import Scheduler

FOLDER, ADDRESS = Path(sys.argv[1]), sys.argv[2]
LOG = os.open(FOLDER / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

scheduler = Scheduler(ADDRESS)


def note(*words: object) -> None:
    """One line, written at once, behind those of all processes."""
    os.write(LOG, (" ".join(map(str, words)) + "\n").encode())


@scheduler.handler("story")
def story(name: str, gate: str | None = None) -> list[str]:
    note("start", name)
    while gate is not None and not (FOLDER / gate).exists():
        time.sleep(0.002)
    note("end", name)
    return [name]


def direct(name: str) -> None:
    scheduler.execute_direct("story", {"name": name})


def main() -> None:
    for line in sys.stdin:
        match line.split():
            case ["start"]:
                stats = scheduler.start()
                print(stats.to_json() if stats else None, flush=True)
            case ["direct", name]:
                threading.Thread(target=direct, args=[name]).start()
            case ["create", count]:
                for n in range(int(count)):
                    print(scheduler.create_job("story", params={"name": str(n)}).job_id, flush=True)
            case ["dispatch"]:
                print(scheduler.dispatch_job(scheduler.create_job("story", params={"name": "dispatched"}).job_id).job_id, flush=True)
            case ["run"]:
                print("running", flush=True)
                scheduler.run()
                note("stopped")
                return
    scheduler.close()


if __name__ == "__main__":
    main()
