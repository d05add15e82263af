"""From a drafter's name to the class that drafts for a pair, and the default drafter of a pair."""

import importlib
from collections.abc import Iterable

from specviz.drafters import CLASSES, DRAFTERS
from specviz.drafters.base import Drafter, Plain
from specviz.drafters.copying import PromptLookup
from specviz.drafters.draft_model import DraftModel
from specviz.drafters.heads import Eagle, Medusa, Mtp, Parallel
from specviz.drafters.self_drafting import QuantisedSelf
from specviz.models.pair import ModelPair
from specviz.models.quantised_targets import is_quicker
from specviz.parts.servers import Servers
from specviz.records.errors import SpecvizError, quoted
from specviz.records.settings import DraftParams


def _class(home: str) -> type[Drafter]:
    module, _, name = home.partition(".")
    return getattr(importlib.import_module(f"specviz.drafters.{module}"), name)


_CLASSES: dict[str, type[Drafter]] = {name: _class(home) for name, home in CLASSES.items()}

#: The drafters for which something is named when a pair is loaded, the fastest first (docs/measuring.md). `Hybrid` and
#: `Eagle` are at most a tenth faster than `DraftModel`, which is within the spread of these figures.
_NAMED = (DraftModel, Eagle, Mtp, Parallel, Medusa)


def class_named(name: str) -> type[Drafter]:
    """The class registered under this name. Raises SpecvizError (field ``drafter``) for an unknown one."""
    if name not in _CLASSES:
        raise SpecvizError(
            "There is no drafter {name}; choose from {names}.", "drafter", name=quoted(name), names=", ".join(DRAFTERS)
        )
    return _CLASSES[name]


def drafter_class(pair: ModelPair, name: str | None) -> type[Drafter]:
    """The drafter with this name, as this pair needs it; None is plain decoding.

    Raises SpecvizError (field ``drafter``) for an unknown name.
    """
    return Plain if name is None else class_named(name).suited(pair)


def servers_of(pair: ModelPair, names: Iterable[str]) -> dict[str, Servers]:
    """What inference servers call these drafters as they draft for this pair: the published parts that they run."""
    return {
        name: pair.parts[name].served_as() if name in pair.parts else drafter_class(pair, name).servers
        for name in names
    }


def usual(pair: ModelPair, preparing: bool = True) -> str:
    """The drafter to start with for this pair: the fastest one that it can use.

    Without a draft model or trained part that is the target in few bits, if kernels read those faster than the target
    itself, else prompt lookup. preparing: missing passes are going to be prepared.
    """
    for drafter in _NAMED:
        if _can_draft(drafter, pair):
            return drafter.name
    in_few_bits = _can_draft(QuantisedSelf, pair) and is_quicker(pair, preparing)
    return QuantisedSelf.name if in_few_bits else PromptLookup.name


def _can_draft(drafter: type[Drafter], pair: ModelPair) -> bool:
    try:
        drafter_class(pair, drafter.name).check(pair, DraftParams())
    except SpecvizError:
        return False
    return True
