"""For how long to ask for a GPU where the platform lends them by the call.

Asking for more than is needed would have a visitor wait longer and, with little of their daily time left, be refused; a
call that takes longer than it asked for may be cut off. So this is an estimate for the slowest way that runs can go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from specviz.records.settings import AUTO, RunSettings
from specviz.ui.ways import drafter_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specviz.models.pair import ModelPair

#: Below the least a slow start alone would use it up; the most is what any visitor may ask for.
LEAST_SECONDS, MOST_SECONDS = 20, 120

#: For a process, CUDA and the weights to be there, and for the first, slow passes.
START_SECONDS = 12

#: What an eager pass is reckoned to take; GPUs that are lent have been at least twice as fast.
LAYER_SECONDS, BYTES_PER_SECOND, OPERATIONS_PER_SECOND = 1e-3, 1e12, 1e14


def seconds_for(pair: ModelPair, prompt_tokens: int, runs: Iterable[RunSettings]) -> int:
    """For how long to ask so that these runs can be made one after the other, even if every draft is rejected."""
    reading = 2 * pair.target.num_parameters() * prompt_tokens / OPERATIONS_PER_SECOND
    needed = START_SECONDS + sum(reading + _seconds(pair, settings) for settings in runs)
    return round(min(max(needed, LEAST_SECONDS), MOST_SECONDS))


def _seconds(pair: ModelPair, settings: RunSettings) -> float:
    verify = _pass_seconds(pair.target)
    if settings.drafter is None:
        return settings.max_new_tokens * verify
    drafter = drafter_of(pair, settings.drafter)
    step = _pass_seconds(pair.draft) if drafter.step_share is None else drafter.step_share * verify
    # Where γ is chosen, nothing is drafted as soon as drafting costs more than it brings.
    depth = 1 if settings.num_draft_tokens == AUTO else settings.num_draft_tokens
    return drafter.preparing_seconds + settings.max_new_tokens * (verify + depth * step)


def _pass_seconds(model: PreTrainedModel) -> float:
    from specviz.passes.model_twins import layer_count

    weights = model.num_parameters() * model.dtype.itemsize
    return layer_count(model) * LAYER_SECONDS + weights / BYTES_PER_SECOND
