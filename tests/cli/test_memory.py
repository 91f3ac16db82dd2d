"""Memory that the command's process frees stays with it, and what it takes comes in large pages."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

FAULTS_OF_TAKING_AGAIN = """
import resource, sys
from torchllp.cli.memory import set_up_memory

if sys.argv[1] == "as in the command":
    set_up_memory()
import torch

megabytes = int(sys.argv[2])
for _ in range(8):  # 128 MB, taken and freed
    [torch.ones(megabytes * 2**18) for _ in range(128 // megabytes)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    [torch.ones(megabytes * 2**18) for _ in range(128 // megabytes)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def faults(how: str, megabytes: int) -> int:
    """How often the system is asked for pages while 640 MB are taken, in blocks of so many megabytes."""
    command = [sys.executable, "-c", FAULTS_OF_TAKING_AGAIN, how, str(megabytes)]
    at_once = dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), "131072")  # is given back
    environment = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"} | at_once
    return int(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_memory_that_was_freed_is_taken_again_without_asking_the_system():
    assert faults("as in the command", megabytes=16) < 100
    assert faults("as it is", megabytes=16) > 1000


@pytest.mark.skipif(not HUGE_PAGES.is_file() or "[madvise]" not in HUGE_PAGES.read_text(), reason="a setting of Linux")
def test_blocks_that_are_too_large_to_be_kept_come_in_large_pages():
    assert faults("as in the command", megabytes=64) < 10_000
    assert faults("as it is", megabytes=64) > 100_000
