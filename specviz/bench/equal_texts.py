"""Equal texts before any time is taken: a speed is that of plain greedy decoding's own text, or is none.

In float32 texts are the same, token by token. In half precision passes of different widths round differently, and
the target's best two tokens can be too close to tell apart: there a text may part, and from there on each of its
tokens has to be the target's best up to rounding, given that text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specviz.bench.bare_loop import Unwatched
from specviz.bench.contest import PLAIN, Contestant
from specviz.bench.sections import Agreement
from specviz.bench.timed_runs import Job, request_of, timed
from specviz.decoding import engine
from specviz.passes.cached_model import CachedModel
from specviz.records.comparison import NEAR_TIE, first_difference, margin
from specviz.records.errors import SpecvizError
from specviz.records.runs import Run


def require_equal_texts(contestants: Sequence[Contestant], job: Job) -> list[Agreement]:
    """Each contestant's greedy text beside that of our plain decoding, one verdict each.

    Raises SpecvizError (field ``only``) that names the contestant and the place, for a difference that is more than
    rounding.
    """
    request = request_of(Contestant(PLAIN), job)
    plain = engine.collect(request, list(engine.rounds(request)))
    return [agreement(contestant, timed(contestant, job).token_ids, plain, job) for contestant in contestants]


def agreement(contestant: Contestant, tokens: Sequence[int], plain: Run, job: Job) -> Agreement:
    """The verdict on one text. plain: the run of plain decoding on the same job. Raises as `require_equal_texts`."""
    place = first_difference(plain.token_ids, tokens)
    told = {"title": contestant.title, "engine": contestant.engine, "mode": contestant.mode}
    told |= {"preset": job.preset.name, "tokens": len(tokens)}
    if place is None:
        return Agreement(**told)
    apart = margin(plain, place)
    if plain.pair.dtype == "float32" or place >= len(tokens) or apart is None or apart > NEAR_TIE:
        raise _wrong_token(contestant, tokens, plain, job, place)
    gaps = _gaps(job, tokens)[place:]
    if max(gaps) > NEAR_TIE:
        raise SpecvizError(
            "{title} is wrong on {preset}: its greedy token {place} lies {gap} below the target's best in log "
            "probability, which is more than rounding; nothing was timed there.",
            "only",
            title=contestant.title,
            preset=job.preset.name,
            place=place + gaps.index(max(gaps)) + 1,
            gap=f"{max(gaps):.2f}",
        )
    return Agreement(**told, place=place, margin=apart, largest_gap=max(gaps))


def _wrong_token(contestant: Contestant, tokens: Sequence[int], plain: Run, job: Job, place: int) -> SpecvizError:
    apart = margin(plain, place)
    return SpecvizError(
        "{title} is wrong on {preset}: its greedy token {place} is {got} and plain decoding's {due}, with {margin} "
        "between the target's best two in log probability ({dtype}); nothing was timed there.",
        "only",
        title=contestant.title,
        preset=job.preset.name,
        place=place + 1,
        got=_named(job, tokens, place),
        due=_named(job, plain.token_ids, place),
        margin="?" if apart is None else f"{apart:.2g}",
        dtype=plain.pair.dtype,
    )


def _named(job: Job, tokens: Sequence[int], place: int) -> str:
    """A token's text in quotes, or a sign where the text is over."""
    return repr(job.pair.texts.chip(tokens[place])) if place < len(tokens) else "∅"


@torch.inference_mode()
def _gaps(job: Job, tokens: Sequence[int]) -> list[float]:
    """How far each token lies below the target's best one, in log probability, by one plain pass over the text."""
    target = CachedModel(job.pair.target, Unwatched(job.pair.device))
    target.prefill(job.prompt)
    text = [*job.prompt, *tokens[:-1]]
    logits = target.forward(target.unread(text), keep=len(tokens)).float()
    chosen = logits.gather(-1, torch.tensor(tokens, device=logits.device).unsqueeze(-1)).squeeze(-1)
    return (logits.amax(-1) - chosen).tolist()
