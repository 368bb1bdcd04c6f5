"""Whether a process of this machine still runs."""

import psutil


def lives(process: int) -> bool:
    """Whether a process of this machine runs.

    One that ended no longer does, though its parent has not asked how: where the first process of a container asks
    nobody, such a one keeps its number for good.
    """
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.AccessDenied:
        return True
    except (psutil.NoSuchProcess, ValueError):
        return False
