"""What tests/models/test_any_size.py starts in two processes: runs on a target that they share, written by the leader.

Usage: torchrun --nproc-per-node 2 shards.py FOLDER, a folder with target and draft.
"""

from __future__ import annotations

import json
import pathlib
import sys

import torch

import specviz
from specviz.__main__ import main
from specviz.models.loading import load_pair
from specviz.models.pair import ModelPair
from specviz.passes.processes import is_leader
from specviz.records.runs import Run
from specviz.records.settings import DraftParams

PROMPT = list(range(5, 25))
NEW_TOKENS = 6

#: Every way in which what a process computes by itself decides how the run goes on.
DRAFTERS = (
    (None, DraftParams()),
    ("draft_model", DraftParams(branches=2, confidence=0.3)),
    ("prompt_lookup", DraftParams()),
    ("early_exit", DraftParams()),
    ("eagle", DraftParams(branches=2)),
    ("parallel", DraftParams()),
)


def runs(pair: ModelPair) -> dict[str, Run]:
    """Greedy and sampled runs of all drafters."""
    return {
        f"{drafter} {params} {temperature}": specviz.run(
            pair,
            PROMPT,
            drafter=drafter,
            drafting=params,
            sampling=specviz.SamplingParams(temperature=temperature),
            max_new_tokens=NEW_TOKENS,
            seed=2,
        )
        for drafter, params in DRAFTERS
        for temperature in (0.0, 1.0)
    }


def in_parallel(folder: pathlib.Path) -> None:
    pair = load_pair(folder / "target", folder / "draft", device="parallel", dtype="float32")
    made = runs(pair)
    if not is_leader():
        # As if this process rounded differently, by a great deal.
        for parameter in pair.draft.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    apart = runs(pair)
    if is_leader():
        tokens = [{name: run.token_ids for name, run in some.items()} for some in (made, apart)]
        (folder / "tokens.json").write_text(json.dumps({"device": pair.info().device, "tokens": tokens}))
    named = [f"--target={folder / 'target'}", f"--draft={folder / 'draft'}", f"--json={folder / 'run.json'}"]
    main(["run", "Once upon a time", "--temperature=0", "--max-new-tokens=16", "--dtype=float32", *named])


if __name__ == "__main__":
    in_parallel(pathlib.Path(sys.argv[1]))
