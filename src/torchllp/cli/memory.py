"""How the command's own process keeps memory."""

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Names of settings in glibc's malloc.h."""
LARGEST_KEPT = 32 * 2**20
"""The most that glibc takes; and larger blocks, of a network that is itself large, leave holes that nothing fits in."""


def keep_freed_memory() -> None:
    """Keep blocks of up to 32 MB that are freed, where the C library is glibc.

    A step of training on a CPU frees and takes the same megabytes again and again. By default glibc gives them back to
    the system as soon as there are many, which then clears every page anew.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library; on Windows there is no name for "this process"
        return
    mallopt(MMAP_THRESHOLD, LARGEST_KEPT)
    mallopt(TRIM_THRESHOLD, 2**31 - 1)
