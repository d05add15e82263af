"""The ways to draft, by name."""

from __future__ import annotations

from specviz.drafters.base import Draft, Drafter, Setting, Verdict
from specviz.drafters.draft_model import DraftModel
from specviz.drafters.eagle import Eagle
from specviz.drafters.early_exit import EarlyExit
from specviz.drafters.lookahead import Lookahead
from specviz.drafters.medusa import Medusa
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.drafters.stepwise import Chooser, Draws, Stepwise, TopChoices
from specviz.drafters.suffix import Suffix
from specviz.drafters.translated import TranslatedDraftModel
from specviz.models.pair import ModelPair

_CLASSES: tuple[type[Drafter], ...] = (DraftModel, PromptLookup, Suffix, Lookahead, EarlyExit, Medusa, Eagle)

#: Every way to draft that can be asked for by name.
DRAFTERS: tuple[str, ...] = tuple(drafter.name for drafter in _CLASSES)


def drafter_class(pair: ModelPair, name: str) -> type[Drafter]:
    """The drafter of this name from `DRAFTERS`, as it is for this pair."""
    if name == DraftModel.name and pair.translation is not None:
        return TranslatedDraftModel
    return next(drafter for drafter in _CLASSES if drafter.name == name)


__all__ = [
    "DRAFTERS",
    "Chooser",
    "Draft",
    "DraftModel",
    "Drafter",
    "Draws",
    "Eagle",
    "EarlyExit",
    "Lookahead",
    "Medusa",
    "PromptLookup",
    "Setting",
    "Stepwise",
    "Suffix",
    "TopChoices",
    "TranslatedDraftModel",
    "Verdict",
    "drafter_class",
]
