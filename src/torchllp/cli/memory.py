"""How the command's own process takes and keeps memory."""

import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Names of settings in glibc's malloc.h."""
LARGEST_KEPT = 32 * 2**20
"""The most that glibc takes; and larger blocks, of a network that is itself large, leave holes that nothing fits in."""


def set_up_memory() -> None:
    """Make memory cheap to take for a training on a CPU, which frees and takes the same megabytes again and again.

    Must come before torch takes any memory, which is when it reads its variable.
    """
    _keep_freed_memory()
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # PyTorch asks Linux for pages of 2 MB in place of 4 KB


def _keep_freed_memory() -> None:
    """Keep blocks of up to 32 MB that are freed, where the C library is glibc.

    By default glibc gives them back to the system as soon as there are many, which then clears every page anew.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library; on Windows there is no name for "this process"
        return
    mallopt(MMAP_THRESHOLD, LARGEST_KEPT)
    mallopt(TRIM_THRESHOLD, 2**31 - 1)
