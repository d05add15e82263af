"""Equal texts before any timing: a speed only counts if the text is plain greedy decoding's own.

In float32 the texts are the same, token by token. In half precision passes of different widths round differently, and
the target's best two tokens can be too close to tell apart. There a text may diverge, and from there on each of its
tokens must be the target's best, up to rounding, given that text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specviz.bench.bare_loop import Unwatched
from specviz.bench.contestants import PLAIN, Contestant
from specviz.bench.timed_runs import Workload, request_of
from specviz.decoding.engine import rounds
from specviz.decoding.record import collect
from specviz.passes.cached_model import CachedModel
from specviz.records.comparison import NEAR_TIE, first_difference, margin
from specviz.records.errors import SpecvizError
from specviz.records.runs import Run


@dataclass(frozen=True, slots=True)
class Agreement:
    """One contestant's greedy text beside our plain one; a text that is wrong gets no verdict, see `agreement`."""

    title: str
    engine: str
    mode: str
    preset: str
    tokens: int  # how many were compared
    place: int | None = None  # the first that differs, counted from 0; None if none does
    margin: float | None = None  # there, log p of the target's best token less its second best
    #: From there on, the most by which a token of the contestant's lies below the target's best one in log probability,
    #: given the contestant's own text.
    largest_gap: float | None = None

    @property
    def identical(self) -> bool:
        return self.place is None


def plain_run(workload: Workload) -> Run:
    """Our plain decoding, with which all others are compared."""
    request = request_of(Contestant(PLAIN), workload)
    return collect(request, list(rounds(request)))


def agreement(contestant: Contestant, tokens: Sequence[int], plain: Run, workload: Workload) -> Agreement:
    """The verdict on a contestant's greedy text. plain: plain decoding of the same workload.

    Raises SpecvizError (field ``only``), naming contestant and place, for a difference that is more than rounding.
    """
    place = first_difference(plain.token_ids, tokens)
    told = {"title": contestant.title, "engine": contestant.engine, "mode": contestant.mode}
    told |= {"preset": workload.preset, "tokens": len(tokens)}
    if place is None:
        return Agreement(**told)
    apart = margin(plain, place)
    if plain.pair.dtype == "float32" or place >= len(tokens) or apart is None or apart > NEAR_TIE:
        raise SpecvizError(
            "{title} is wrong on {preset}: its greedy token {place} is {got} and plain decoding's {due}, with {margin} "
            "between the target's best two in log probability ({dtype}); nothing was timed there.",
            "only",
            title=contestant.title,
            preset=workload.preset,
            place=place + 1,
            got=_named(workload, tokens, place),
            due=_named(workload, plain.token_ids, place),
            margin="?" if apart is None else f"{apart:.2g}",
            dtype=plain.pair.dtype,
        )
    gaps = _gaps(workload, tokens)[place:]
    if max(gaps) > NEAR_TIE:
        raise SpecvizError(
            "{title} is wrong on {preset}: its greedy token {place} lies {gap} below the target's best in log "
            "probability, which is more than rounding; nothing was timed there.",
            "only",
            title=contestant.title,
            preset=workload.preset,
            place=place + gaps.index(max(gaps)) + 1,
            gap=f"{max(gaps):.2f}",
        )
    return Agreement(**told, place=place, margin=apart, largest_gap=max(gaps))


def _named(workload: Workload, tokens: Sequence[int], place: int) -> str:
    """A token's text in quotes, or ∅ after the text's end."""
    return repr(workload.pair.texts.chip(tokens[place])) if place < len(tokens) else "∅"


@torch.inference_mode()
def _gaps(workload: Workload, tokens: Sequence[int]) -> list[float]:
    """How far each token lies below the target's best one in log probability, by one plain pass over the text."""
    target = CachedModel(workload.pair.target, Unwatched(workload.pair.device))
    target.prefill(workload.prompt)
    text = [*workload.prompt, *tokens[:-1]]
    logits = target.forward(target.unread(text), keep=len(tokens)).float()
    chosen = logits.gather(-1, torch.tensor(tokens, device=logits.device).unsqueeze(-1)).squeeze(-1)
    return (logits.amax(-1) - chosen).tolist()
