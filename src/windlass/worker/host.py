"""Facts and metrics of the machine on which a worker runs."""

from __future__ import annotations

import os
import platform
import socket
from typing import Any


def about(version: str) -> dict[str, Any]:
    """Facts that do not change while a process lives."""
    return {
        "host": socket.gethostname()[:128],
        "pid": os.getpid(),
        "version": version,
        "python": platform.python_version(),
        "system": platform.system(),
    }


def metrics(folder: str = "/") -> dict[str, float]:
    """The load of the machine: percent of its processors since the last call, bytes of memory and disk, and its load."""
    import psutil  # comes with the extra for hubs

    memory, disk, load = psutil.virtual_memory(), psutil.disk_usage(folder), os.getloadavg()
    return {
        "cpu": psutil.cpu_percent(),
        "memory": memory.total - memory.available,
        "memory_total": memory.total,
        "disk": disk.used,
        "disk_total": disk.total,
        "load1": load[0],
        "load5": load[1],
        "load15": load[2],
        "cores": psutil.cpu_count() or 1,
    }
