"""Memory that is freed stays with the command's process."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS_OF_TAKING_AGAIN = """
import resource, sys
import torch
from torchllp.cli.memory import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()
for _ in range(3):  # 128 MB, taken and freed
    [torch.ones(4 * 2**20) for _ in range(8)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    [torch.ones(4 * 2**20) for _ in range(8)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_memory_that_was_freed_is_taken_again_without_asking_the_system():
    def faults(how: str) -> int:
        command = [sys.executable, "-c", FAULTS_OF_TAKING_AGAIN, how]
        at_once = dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), "131072")  # is given back
        environment = os.environ | at_once
        return int(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)

    assert faults("kept") < 100
    assert faults("as it is") > 1000
