"""The options that name a pair of models, and loading it with the passes that are wanted."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from specviz.commands.output import progress

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair


def add_pair_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", metavar="NAME", help="folder, GGUF file or Hub id (default: the embedded pair)")
    add(
        "--draft",
        metavar="NAME",
        action="append",
        default=[],
        help="a draft model, or a part trained on the target (EAGLE, DFlash, DSpark, Medusa, MTP, ...); repeatable",
    )
    add(
        "--draft-vocabulary",
        type=int,
        metavar="N",
        help="cut the draft model's head down to N frequent tokens (FR-Spec; default: all)",
    )
    add(
        "--device",
        default="auto",
        help="auto, cpu, cuda, cuda:1, ...; spread: the target over all GPUs, main memory and disk "
        "(default: %(default)s)",
    )
    add("--dtype", default="auto", help="auto, float32, bfloat16, float16 (default: %(default)s)")


def load(options: argparse.Namespace, passes: str = "cached") -> ModelPair:
    """The pair that the options name. Raises SpecvizError if it cannot be loaded.

    passes: one of `PASSES`; what has to be compiled is reported step by step, and why a role got no faster passes.
    """
    from specviz.models.loading import load_pair

    pair = load_pair(
        options.target,
        options.draft,
        draft_vocabulary=options.draft_vocabulary,
        device=options.device,
        dtype=options.dtype,
        passes="plain" if passes == "plain" else "cached",
    )
    if passes == "auto":
        for line in pair.prepare(lambda fraction, step: progress(f"passes: {step}")).shortfalls():
            progress(line)
    return pair
