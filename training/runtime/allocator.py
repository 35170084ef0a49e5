"""The C library's allocator, told to keep the memory that a step frees."""

import ctypes
import functools
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # malloc.h of glibc
LARGEST = 2**31 - 1  # bytes, the largest number mallopt takes


@functools.cache
def keep_freed_memory() -> bool:
    """Has freed memory kept for the next step; returns whether it will be (glibc alone has the switches).

    XLA on the CPU allocates what a program needs anew at each call. glibc gives blocks of that size back to the kernel
    at once, and then every step begins with page faults: 33,000 and a seventh of the time in a step at width 256. With
    one arena, no threshold for mmap and none for trimming there are none. The price: the process stays as large as its
    largest step was. A MALLOC_ variable of one's own, or a tunable, is left in force.
    """
    chosen = any(name.startswith("MALLOC_") for name in os.environ) or "GLIBC_TUNABLES" in os.environ
    if chosen or not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    expected = {M_ARENA_MAX: 1, M_MMAP_THRESHOLD: LARGEST, M_TRIM_THRESHOLD: LARGEST}
    return all([libc.mallopt(option, value) == 1 for option, value in expected.items()])
