"""Where the time of a training step goes, by PyTorch's profiler."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, schedule

from torchllp.engine.train import Observer

SKIPPED, WARM_UP, PROFILED = 3, 2, 10
"""Steps before the profiler, steps that it is given to settle, and steps that it records."""
STEP = "ProfilerStep"
"""What the profiler calls a step, in which there is also the time between operations."""


@dataclass(frozen=True)
class Cost:
    """What one kind of operation took of a step."""

    name: str
    share: float
    milliseconds: float
    calls: float


class Profile(Observer):
    """Records a few steps after the first ones: a trace for the viewer of Chrome or Perfetto, and what costs most.

    On a GPU the costs are those of its kernels, else of the CPU.
    """

    def __init__(self, observer: Observer, file: Path) -> None:
        """``observer`` is told everything as well; ``file`` is where the trace goes."""
        self.observer, self.file = observer, file
        self.on_images, self.on_epoch = observer.on_images, observer.on_epoch
        self.costs: list[Cost] = []
        """The largest first; none before enough steps are done."""
        self.profiler: profile | None = None
        self.num_steps = 0

    def on_start(self, epochs_done: int, num_epochs: int) -> None:
        self.observer.on_start(epochs_done, num_epochs)
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
        steps = schedule(skip_first=SKIPPED, wait=0, warmup=WARM_UP, active=PROFILED, repeat=1)
        self.profiler = profile(activities=activities, schedule=steps, on_trace_ready=self._read)
        self.profiler.start()

    def on_step(self, epoch: int, step: int, num_steps: int) -> None:
        self.observer.on_step(epoch, step, num_steps)
        assert self.profiler is not None
        self.num_steps += 1
        self.profiler.step()

    def close(self) -> None:
        """Stop, whether or not all steps were done."""
        if self.profiler is not None:
            self.profiler.stop()

    def _read(self, profiler: profile) -> None:
        if self.num_steps < SKIPPED + WARM_UP + PROFILED:
            return  # closed on the way
        unfinished = self.file.with_name(f".{self.file.name}")
        profiler.export_chrome_trace(str(unfinished))
        unfinished.replace(self.file)
        events = profiler.key_averages()
        if kernels := [e for e in events if e.device_type != DeviceType.CPU and not e.key.startswith(STEP)]:
            events = kernels
            times = {event.key: event.self_device_time_total for event in events}
        else:
            times = {event.key: event.self_cpu_time_total for event in events}
        calls = {event.key: event.count for event in events}
        total = sum(times.values())
        self.costs = [
            Cost("Python, between operations" if name.startswith(STEP) else name, time / total, ms, n)
            for name, time in sorted(times.items(), key=lambda item: -item[1])
            for ms, n in [(time / 1000 / PROFILED, calls[name] / PROFILED)]
        ]
