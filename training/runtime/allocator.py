"""Sets the C library's allocator to keep the memory that a step frees."""

import ctypes
import functools
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # malloc.h of glibc
LARGEST = 2**31 - 1  # bytes, the largest number mallopt accepts


@functools.cache
def keep_freed_memory() -> bool:
    """Lets freed memory be kept for the next step; returns whether it will be (only glibc has the switches).

    XLA on the CPU allocates a program's memory at each call. glibc returns blocks of that size to the kernel at once,
    and then every step starts with page faults: 33,000 of them and a seventh of the time in a step at width 256. With
    one arena, no threshold for mmap and none for trimming there are none. The cost: the process stays as large as its
    largest step was. A user's MALLOC_ variable or tunable stays in force.
    """
    chosen = any(name.startswith("MALLOC_") for name in os.environ) or "GLIBC_TUNABLES" in os.environ
    if chosen or not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    expected = {M_ARENA_MAX: 1, M_MMAP_THRESHOLD: LARGEST, M_TRIM_THRESHOLD: LARGEST}
    return all([libc.mallopt(option, value) == 1 for option, value in expected.items()])
