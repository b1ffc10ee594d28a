"""Started in front of a command, as a script: binds it to its worker's life and memory, confines programs of runs, then executes it.

A fork of a program with threads must not run Python between fork and exec, so this is a program of its own. It imports nothing of
windlass and little else, because it runs at every start.
"""

import os
import signal
import sys

_DIE_WITH_PARENT, _SIGKILL, _NO_NEW_PRIVILEGES = 1, 9, 38
CONFINES = sys.platform == "linux"  # whether a program can be kept from gaining rights


def bind(memory: int, parent: int) -> None:
    """Limit this process's memory (MiB; 0 is no limit), and have it killed when the thread that started it ends."""
    if memory:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (memory << 20, memory << 20))
    if sys.platform == "linux" and parent:
        import ctypes

        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, _SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os._exit(1)


def confine(processes: int, file_size: int) -> None:
    """Keep this process, and all that it becomes and starts, from gaining rights, from too many processes and from files (MiB) too large.

    0 is no limit. A limit that is lower already stays.
    """
    import resource

    for kind, limit in ((resource.RLIMIT_NPROC, processes), (resource.RLIMIT_FSIZE, file_size << 20)):
        hard = resource.getrlimit(kind)[1]
        if limit:
            limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(kind, (limit, limit))
    if CONFINES:
        import ctypes

        if ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            sys.stderr.write("windlass: this system does not let a process give up new rights (no_new_privs)\n")
            os._exit(126)


if __name__ == "__main__":
    bind(int(sys.argv[1]), int(sys.argv[2]))
    if sys.argv[3] != "-":
        confine(*map(int, sys.argv[3].split(":")))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and the program would inherit that
    try:
        os.execvp(sys.argv[4], sys.argv[4:])  # noqa: S606 - without a shell on purpose
    except OSError as error:
        sys.stderr.write(f"windlass: cannot start {sys.argv[4]}: {error.strerror}\n")
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)
