"""The recorded runs on the page: shown as they were recorded, without a model.

``python -m specviz.ui.maintenance.recorder`` records them anew with the embedded pair, in float32 on the CPU,
where a seed gives the same tokens on any machine; times are those of the machine it runs on.
"""

from __future__ import annotations

import sys

from specviz.decoding import engine
from specviz.models.loading import load_pair
from specviz.models.pair import ModelPair
from specviz.records.recordings import RECORDINGS, TRACES, Recording
from specviz.records.runs import Run
from specviz.records.settings import DraftParams, SamplingParams


def record(recording: Recording, pair: ModelPair) -> Run:
    """The run that the recording's settings describe."""
    asked = recording.settings
    request = engine.prepare(
        pair,
        asked["prompt"],
        drafter=asked["drafter"],
        num_draft_tokens=asked["num_draft_tokens"],
        sampling=SamplingParams(asked["temperature"]),
        max_new_tokens=asked["max_new_tokens"],
        seed=asked["seed"],
        drafting=DraftParams(branches=asked.get("branches")),
        rule=asked.get("rule", "auto"),
    )
    return engine.collect(request, list(engine.rounds(request)))


def main() -> None:
    pair = load_pair(device="cpu", dtype="float32")
    TRACES.mkdir(exist_ok=True)
    for recording in RECORDINGS:
        record(recording, pair)  # warm: its times are on record too
        run = record(recording, pair)
        run.save(recording.path)
        print(
            f"{recording.path.name}: {len(run.rounds)} rounds, {recording.path.stat().st_size // 1000} KB",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
