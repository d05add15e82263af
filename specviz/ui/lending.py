"""Where the platform lends GPUs by the call: which pairs ask for one, for how long, and what its refusals mean.

A visitor has so many seconds a day. Whoever asks for more than are left is refused, though a call may end sooner; a
call that takes longer than it asked for may be cut off. So the seconds are reckoned from the pair's passes, as they
were measured in an earlier call or else from the size of the models, and work ends by itself once they are over.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import gradio as gr

from specviz.passes.zero_gpu import is_zero_gpu
from specviz.records.errors import SpecvizError
from specviz.records.settings import AUTO, RunSettings
from specviz.ui.ways import drafter_of

with contextlib.suppress(ImportError):
    import spaces  # on every Gradio Space; where ZeroGPU is on, it gives a call its GPU

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specviz.models.pair import ModelPair

Function = TypeVar("Function", bound=Callable[..., Any])

#: What a visitor without an account has in a day: nobody may ask for more, in what is charged.
MOST_CHARGED = 120

#: For a process and CUDA to be there; the weights follow from the host's memory at this rate.
PROCESS_SECONDS, LOADED_PER_SECOND = 3.0, 4e9

#: What one of the model's own passes is reckoned to take on a lent GPU: transformers' Llama of 8 billion parameters
#: takes 27 ms a token on an H100, 5 of them for its memory. And the memory of two cores of a server.
LAYER_SECONDS, GPU_BYTES, GPU_OPERATIONS, CPU_BYTES = 0.7e-3, 1.5e12, 1e14, 2e10

#: How much longer than it was measured a pass may take.
MARGIN = 1.25

#: The share of drafted tokens that is reckoned to be accepted.
ACCEPTED = 0.5

#: For checks of a pair, which are no runs; and for the smallest piece of work: its first passes are slow.
CHECKING_SECONDS, LEAST_WORK = 15.0, 6.0


def on_gpu(function: Function, forked: Callable[[], None]) -> Function:
    """Gives each call a GPU where the platform lends them by the call; for how long, its last argument says. forked:
    called in the process of a call, which has none of this one's threads."""
    if not is_zero_gpu():
        return function
    os.register_at_fork(after_in_child=forked)
    return spaces.GPU(duration=lambda *arguments: arguments[-1])(function)


def gains_from_gpu(target: str | None) -> bool:
    """True if a lent GPU makes this target's passes faster: it launches each layer from Python, where a processor runs
    compiled passes. None is the embedded target. Raises SpecvizError for a target that is not found."""
    if target is None:
        return False
    import torch

    from specviz.models.hub import token_given
    from specviz.models.sources import find_model

    source = find_model(target, "target", None, token_given())
    read = source.weight_bytes(torch.bfloat16)
    layers = source.config.get_text_config().num_hidden_layers
    return read / CPU_BYTES > layers * LAYER_SECONDS + read / GPU_BYTES


def seconds_for(pair: ModelPair, prompt_tokens: int, runs: Iterable[RunSettings], further: float) -> int:
    """For how long to ask so that these runs can be made one after the other. further: seconds of other work."""
    reading = 2 * pair.target.num_parameters() * prompt_tokens / GPU_OPERATIONS
    work = further + sum(reading + _seconds(pair, settings) for settings in runs)
    needed = start_seconds(pair) + max(work, LEAST_WORK)
    return int(min(needed + 0.5, MOST_CHARGED / charged_per_second()))


def start_seconds(pair: ModelPair) -> float:
    """Until a call's process has the weights on its GPU."""
    models = [pair.target] + [pair.draft] * (pair.draft is not None)
    return PROCESS_SECONDS + sum(map(_weight_bytes, models)) / LOADED_PER_SECOND


def charged_per_second() -> float:
    """How many seconds the platform counts for each that is asked for: by its card, and twice for two halves of it."""
    zero = spaces.zero
    return 2.0 if zero.default_gpu_size() == "xlarge" else zero.config.get_config()["duration_factor"]


def _seconds(pair: ModelPair, settings: RunSettings) -> float:
    measured = pair.passes.seconds_by_width.get(1)
    pace = 1.0 if measured is None else MARGIN * measured / _pass_seconds(pair.target)
    verify = pace * _pass_seconds(pair.target)
    if settings.drafter is None:
        return settings.max_new_tokens * verify
    drafter = drafter_of(pair, settings.drafter)
    step = pace * _pass_seconds(pair.draft) if drafter.step_share is None else drafter.step_share * verify
    # Where γ is chosen, nothing is drafted as soon as drafting costs more than it brings.
    depth = 1 if settings.num_draft_tokens == AUTO else settings.num_draft_tokens
    rounds = settings.max_new_tokens / sum(ACCEPTED**position for position in range(depth + 1))
    return drafter.preparing_seconds + rounds * (verify + depth * step)


def _pass_seconds(model: PreTrainedModel) -> float:
    from specviz.passes.model_twins import layer_count

    return layer_count(model) * LAYER_SECONDS + _weight_bytes(model) / GPU_BYTES


def _weight_bytes(model: PreTrainedModel) -> int:
    return model.num_parameters() * model.dtype.itemsize


def time_is_up(seconds: float) -> SpecvizError:
    """What ends work that takes longer than it asked for."""
    return SpecvizError(
        "The {seconds} seconds for which the platform lent a GPU are up: ask for fewer new tokens or runs.",
        seconds=round(seconds),
    )


def refusal(error: gr.Error) -> SpecvizError:
    """What a refusal of the platform means, with the way out; its own words are in a toast's title and message."""
    reason = str(error.message).strip().rstrip(".") + "."
    if error.title in ("ZeroGPU quota exceeded", "ZeroGPU pending credits exceeded"):
        return SpecvizError(
            "You do not have enough GPU time left on this platform: {reason} Sign in at huggingface.co and open the "
            "Space's page there, ask for fewer new tokens, or run specviz on your own computer, even without a GPU.",
            reason=reason,
        )
    if error.title == "ZeroGPU illegal duration":
        return SpecvizError(
            "The platform does not lend you a GPU for this long: {reason} Ask for fewer new tokens or runs, or sign in "
            "at huggingface.co and open the Space's page there.",
            reason=reason,
        )
    if "No GPU was available" in reason:
        return SpecvizError(
            "All of the platform's GPUs are in use: {reason} Try again in a minute, or run specviz on your own "
            "computer, even without a GPU.",
            reason=reason,
        )
    return SpecvizError("The platform lent no GPU: {reason} Reload the page and try again.", reason=reason)
