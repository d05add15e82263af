"""For how long to ask for a GPU where the platform lends them by the call.

Asking for more than is needed would have a visitor wait longer and, with little of their daily time left, be refused;
a call that takes longer than it asked for may be cut off. So this reckons with the slowest course that runs can take.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from specviz.records.settings import AUTO, RunSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specviz.models.pair import ModelPair

#: Below the least a slow start alone would use it up; the most is what any visitor may ask for.
LEAST_SECONDS, MOST_SECONDS = 20, 120

#: For a process, CUDA and the weights to be there, and for the first, slow passes.
START_SECONDS = 12

#: For timing rounds before γ is chosen, and for the target's copy in few bits: what a call learns or makes ends with
#: it.
TIMING_SECONDS, ROUNDING_SECONDS = 3, 5

#: What an eager pass is reckoned to take; GPUs that are lent have been at least twice as fast.
LAYER_SECONDS, BYTES_PER_SECOND, OPERATIONS_PER_SECOND = 1e-3, 1e12, 1e14


def seconds_for(pair: ModelPair, prompt_tokens: int, runs: Iterable[RunSettings]) -> int:
    """For how long to ask so that these runs can be made one after the other, even if every draft is rejected."""
    reading = 2 * pair.target.num_parameters() * prompt_tokens / OPERATIONS_PER_SECOND
    needed = START_SECONDS + sum(_extra(one) + reading + one.max_new_tokens * _round_seconds(pair, one) for one in runs)
    return round(min(max(needed, LEAST_SECONDS), MOST_SECONDS))


def _extra(settings: RunSettings) -> float:
    chosen = settings.drafter is not None and settings.num_draft_tokens == AUTO
    return TIMING_SECONDS * chosen + ROUNDING_SECONDS * (settings.drafter == "quantised_self")


def _round_seconds(pair: ModelPair, settings: RunSettings) -> float:
    verify = _pass_seconds(pair.target)
    if settings.drafter is None:
        return verify
    with_model = settings.drafter == "draft_model" and pair.draft is not None
    # In few bits it is as deep as ever; whatever else drafts leaves it half-way at the latest, or takes none of it.
    share = 1 if settings.drafter == "quantised_self" else 1 / 2
    draft = _pass_seconds(pair.draft) if with_model else share * verify
    # Where γ is chosen, it is none as soon as drafting costs more than it brings.
    depth = 1 if settings.num_draft_tokens == AUTO else settings.num_draft_tokens
    return verify + depth * draft


def _pass_seconds(model: PreTrainedModel) -> float:
    from specviz.passes.model_twins import layer_count

    weights = model.num_parameters() * model.dtype.itemsize
    return layer_count(model) * LAYER_SECONDS + weights / BYTES_PER_SECOND
