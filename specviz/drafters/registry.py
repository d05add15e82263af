"""From a drafter's name to the class that drafts for a pair, and the default drafter of a pair."""

import importlib
from collections.abc import Iterable, Mapping

from specviz.drafters import CLASSES, DRAFTERS
from specviz.drafters.base import Drafter, Plain
from specviz.drafters.copying import PromptLookup
from specviz.drafters.draft_model import DraftModel
from specviz.drafters.heads import Eagle, Medusa, Mtp, Parallel
from specviz.drafters.self_drafting import QuantisedSelf
from specviz.models.pair import ModelPair
from specviz.models.pair_passes import Trial
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

    Without a draft model or trained part that is the best in a trial; before there was one, the target in few bits, if
    kernels read those faster than the target itself, else prompt lookup. preparing: missing passes are going to be
    prepared.
    """
    if named := named_for(pair):
        return named
    if pair.passes.trials:
        return best_of(pair.passes.trials)
    in_few_bits = _can_draft(QuantisedSelf, pair) and is_quicker(pair, preparing)
    return QuantisedSelf.name if in_few_bits else PromptLookup.name


def named_for(pair: ModelPair) -> str | None:
    """The fastest drafter for which a draft model or a trained part was named."""
    return next((drafter.name for drafter in _NAMED if _can_draft(drafter, pair)), None)


def best_of(trials: Mapping[str, Trial]) -> str:
    """Of the drafters that may be as fast as the surest one, that with the most tokens a pass. The surest is the
    fastest as far as can be counted on: where none pays, many may be as fast as plain decoding."""
    surest = max(trials.values(), key=lambda trial: (trial.ratio.low or 0.0, trial.ratio.value))
    as_fast = (name for name, trial in trials.items() if (trial.ratio.high or trial.ratio.value) >= surest.ratio.value)
    return max(as_fast, key=lambda name: trials[name].tokens_a_pass)


def worth_trying(pair: ModelPair) -> list[str]:
    """The drafters that this pair can use. The target in few bits is left out where it would be no quicker to read than
    the target itself: making it takes seconds, and memory for all weights in float32."""
    names = [name for name, drafter in _CLASSES.items() if _can_draft(drafter, pair)]
    return [name for name in names if name != QuantisedSelf.name or is_quicker(pair, preparing=True)]


def _can_draft(drafter: type[Drafter], pair: ModelPair) -> bool:
    try:
        drafter_class(pair, drafter.name).check(pair, DraftParams())
    except SpecvizError:
        return False
    return True
