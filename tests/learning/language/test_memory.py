"""Blocks that a loop frees and makes again are the same pages, and go back to the system at its end."""

import ctypes
import os
import platform
import resource
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is not glibc's")

MEBIBYTES = 48
"""More than glibc ever keeps by itself."""
PAGES = (MEBIBYTES << 20) // resource.getpagesize()


def asked(source: str, **environment: str) -> list[int]:
    """What a fresh process prints: other tests' allocations have no part in it."""
    ready = f"""
    import resource
    from learning.language.memory import freed_is_kept

    def faults() -> int:
        began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        block = bytearray(b"1") * ({MEBIBYTES} << 20)
        del block
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - began

    def resident() -> int:
        return int(open("/proc/self/statm").read().split()[1])
    """
    code = textwrap.dedent(ready) + textwrap.dedent(source)
    kept = {name: each for name, each in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=kept | environment, check=True, capture_output=True, text=True
    )
    return [int(line) for line in done.stdout.split()]


def test_a_block_that_was_freed_is_used_again_and_goes_back_at_the_end():
    before, first, again, within, after, later = asked(
        """
        faults()
        print(faults())
        with freed_is_kept():
            print(faults())
            with freed_is_kept():
                print(faults())
            print(resident())
        print(resident())
        faults()
        print(faults())
        """
    )
    assert before > 0.9 * PAGES  # each page is asked of the system
    assert first > 0.9 * PAGES
    assert again < 0.1 * PAGES
    assert within - after > 0.9 * PAGES
    assert later > 0.9 * PAGES


def test_settings_of_the_environment_stay():
    first, again = asked("with freed_is_kept():\n    print(faults())\n    print(faults())", MALLOC_ARENA_MAX="2")
    assert min(first, again) > 0.9 * PAGES


def test_where_the_allocator_has_no_settings_nothing_is_done(monkeypatch):
    from learning.language import memory

    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    with memory.freed_is_kept():
        assert memory._within == 0
