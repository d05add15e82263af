"""Records the runs that come with the page anew: ``python -m tools.recorder``.

With the embedded pair, in float32 on the CPU, where a seed gives the same tokens on any machine, and with passes
prepared, as visitors have them a minute after the start; times, and the speedup beside plain decoding, are those of the
machine it runs on. It must have nothing else to do.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from specviz.bench.duel import Duel, duel
from specviz.bench.machine import load_average
from specviz.decoding.engine import rounds
from specviz.decoding.record import collect
from specviz.decoding.request import prepare
from specviz.models.loading import load_pair
from specviz.models.pair import ModelPair
from specviz.records.links import settings_of_run
from specviz.records.recordings import RECORDINGS, Recording
from specviz.records.runs import Run
from specviz.records.settings import RunSettings

#: Processes that want a core; with more, times are not those of the machine.
IDLE = 0.5


def record(recording: Recording, pair: ModelPair) -> Run:
    """The recording's run once more, with its measured speedup."""
    request = prepare(pair, RunSettings.of(settings_of_run(recording.load())))
    *_, result = duel(request, whole=True)  # warms up as well: the times of the run are on record too
    assert isinstance(result, Duel), "it comes last"
    return replace(collect(request, list(rounds(request))), measured=result.speedup())


def main() -> None:
    if load_average() > IDLE:
        sys.exit(f"This machine is busy (a load of {load_average():g}): times would not be its own.")
    pair = load_pair(device="cpu", dtype="float32", passes="auto")
    for recording in RECORDINGS:
        run = record(recording, pair)
        run.save(recording.path)
        kilobytes = recording.path.stat().st_size // 1000
        assert run.measured is not None, "record measured it"
        summary = f"{len(run.rounds)} rounds, {run.measured.ratio:.2f}×, {kilobytes} KB"
        print(f"{recording.path.name}: {summary}", file=sys.stderr)


if __name__ == "__main__":
    main()
