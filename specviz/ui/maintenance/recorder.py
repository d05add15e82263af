"""Records the runs that come with the page anew: ``python -m specviz.ui.maintenance.recorder``.

With the embedded pair, in float32 on the CPU, where a seed gives the same tokens on any machine; times are those of the
machine it runs on.
"""

from __future__ import annotations

import sys

from specviz.decoding.engine import rounds
from specviz.decoding.request import prepare
from specviz.decoding.run_record import collect
from specviz.models.loading import load_pair
from specviz.models.pair import ModelPair
from specviz.records.recordings import RECORDINGS, TRACES, Recording
from specviz.records.runs import Run


def record(recording: Recording, pair: ModelPair) -> Run:
    """The run that the recording's settings describe."""
    request = prepare(pair, recording.settings)
    return collect(request, list(rounds(request)))


def main() -> None:
    pair = load_pair(device="cpu", dtype="float32")
    TRACES.mkdir(exist_ok=True)
    for recording in RECORDINGS:
        record(recording, pair)  # warm: its times are on record too
        run = record(recording, pair)
        run.save(recording.path)
        kilobytes = recording.path.stat().st_size // 1000
        print(f"{recording.path.name}: {len(run.rounds)} rounds, {kilobytes} KB", file=sys.stderr)


if __name__ == "__main__":
    main()
