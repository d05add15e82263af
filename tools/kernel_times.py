"""The CUDA kernels of a round, how many and how long: ``python -m tools.kernel_times --target … --draft …``."""

from __future__ import annotations

import argparse
import sys

import torch

import specviz
from specviz.commands import pairs
from specviz.passes.devices import synchronise
from specviz.records.streams import carried_out

#: Runs before the profiled one: in them passes are met and recorded.
WARM = 2

#: Kernels that are named, the longest first.
TOP = 12


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.kernel_times", description="The CUDA kernels of a round.")
    parser.add_argument("--drafter", default="draft_model", help="or plain (default: %(default)s)")
    pairs.add_pair_options(parser)
    options = parser.parse_args()
    pair = pairs.load(options, "auto")

    def decoded() -> specviz.Run:
        drafter = None if options.drafter == "plain" else options.drafter
        greedy = specviz.SamplingParams(temperature=0.0)
        run = specviz.run(pair, "Once upon a time there was", drafter=drafter, sampling=greedy, max_new_tokens=128)
        synchronise(pair.device)
        return run

    for _ in range(WARM):
        decoded()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        rounds = len(decoded().rounds)
    kernels = [kernel for kernel in profile.key_averages() if kernel.device_type.name == "CUDA"]
    count, busy = (sum(getattr(kernel, what) for kernel in kernels) for what in ("count", "device_time_total"))
    print(f"{count / rounds:.0f} kernels a round, busy for {busy / 1000 / rounds:.3f} ms of it")
    for kernel in sorted(kernels, key=lambda kernel: -kernel.device_time_total)[:TOP]:
        print(f"{kernel.device_time_total / 1000 / rounds:8.3f} ms {kernel.count / rounds:6.1f} × {kernel.key[:90]}")


if __name__ == "__main__":
    sys.exit(carried_out(main))
