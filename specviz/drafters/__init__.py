"""The ways to draft, one file each; register new drafters here, in `_CLASSES`.

base           what a drafter is (propose a draft, observe the verdict) and what it is built from
choosers       from a model's probabilities to tokens: top choices or draws
stepwise       drafting token by token or level by level, for drafters with probabilities
draft_model    a second, smaller model
translated     the same, with a different tokenizer
self_drafting  what the target's cheaper versions of itself share:
early_exit     its first layers
quantised_self all of it, with weights in few bits
headed         what the trained parts share: medusa (all positions at once), eagle (token by token)
mtp            as eagle, by modules that come with the target
at_once        what drafters share that make all depths in one pass: medusa, parallel (masks after the text)
prompt_lookup  what followed the last few tokens at their previous occurrence
suffix         the same, weighted by how often each token followed
hybrid         the same where it promises most of a draft, elsewhere a model
lookahead      the target's own guesses from earlier passes
plain          nothing: plain decoding
"""

from __future__ import annotations

from specviz.drafters.base import Drafter
from specviz.drafters.draft_model import DraftModel
from specviz.drafters.eagle import Eagle
from specviz.drafters.early_exit import EarlyExit
from specviz.drafters.hybrid import Hybrid
from specviz.drafters.lookahead import Lookahead
from specviz.drafters.medusa import Medusa
from specviz.drafters.mtp import Mtp
from specviz.drafters.parallel import Parallel, ParallelDraftModel
from specviz.drafters.plain import Plain
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.drafters.quantised_self import QuantisedSelf
from specviz.drafters.suffix import Suffix
from specviz.drafters.translated import TranslatedDraftModel
from specviz.models.pair import ModelPair
from specviz.models.quantised_target import read_by_kernels
from specviz.records.errors import SpecvizError, quoted
from specviz.records.settings import DraftParams

_CLASSES: tuple[type[Drafter], ...] = (
    DraftModel,
    PromptLookup,
    Suffix,
    Hybrid,
    Lookahead,
    EarlyExit,
    QuantisedSelf,
    Medusa,
    Eagle,
    Mtp,
    Parallel,
)

#: What somebody named to draft with, the fastest first where it is several (docs/measuring.md). `Hybrid` and `Eagle`
#: are at most a tenth faster than `DraftModel`, which is within what these figures spread.
_NAMED = (DraftModel, Eagle, Mtp, Parallel, Medusa)

#: The names of all drafters; None stands for plain decoding.
DRAFTERS: tuple[str, ...] = tuple(drafter.name for drafter in _CLASSES)


def drafter_class(pair: ModelPair, name: str | None) -> type[Drafter]:
    """The drafter with this name, as this pair needs it; None is plain decoding.

    Raises SpecvizError (field ``drafter``) for an unknown name.
    """
    if name is None:
        return Plain
    if name == DraftModel.name and pair.translation is not None:
        return TranslatedDraftModel
    if name == Parallel.name and name not in pair.parts and ParallelDraftModel.suits(pair):
        return ParallelDraftModel
    for drafter in _CLASSES:
        if drafter.name == name:
            return drafter
    raise SpecvizError(
        "There is no drafter {name}; choose from {names}.", "drafter", name=quoted(name), names=", ".join(DRAFTERS)
    )


def usual(pair: ModelPair, preparing: bool = True) -> str:
    """The drafter to start with for this pair: the fastest known of what it has.

    With nothing trained that is the target in few bits, where kernels read it faster than the target itself; else
    prompt lookup. preparing: whether passes that are not there yet are going to be prepared.
    """
    for drafter in _NAMED:
        if _can_draft(drafter, pair):
            return drafter.name
    in_few_bits = _can_draft(QuantisedSelf, pair) and read_by_kernels(pair, preparing)
    return QuantisedSelf.name if in_few_bits else PromptLookup.name


def _can_draft(drafter: type[Drafter], pair: ModelPair) -> bool:
    try:
        drafter_class(pair, drafter.name).check(pair, DraftParams())
    except SpecvizError:
        return False
    return True
