"""The plan of a benchmark: its prompts, draft lengths and contestants."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specviz.bench.contestants import PLAIN, Contestant
from specviz.drafters import DRAFTERS
from specviz.drafters.at_once import AtOnce
from specviz.drafters.base import Drafter
from specviz.drafters.copying import PromptLookup
from specviz.drafters.draft_model import DraftModel
from specviz.drafters.last_state import FromLastState
from specviz.drafters.registry import drafter_class
from specviz.models.pair import ModelPair
from specviz.passes.processes import process_count
from specviz.records.errors import SpecvizError, quoted
from specviz.records.prompts import CHAT_PRESETS, PRESETS, Preset
from specviz.records.settings import AUTO, BITS


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """How much is measured."""

    presets: Sequence[Preset] = PRESETS
    #: Draft lengths of chains. 5 fills the rows that our kernels read at once without AVX-512, see `few_rows.cpp`.
    gammas: Sequence[int] = (2, 3, 4, 5, 6)
    copied_gammas: Sequence[int] = (2, 4, 8)  # draft lengths of drafters that copy
    tree_gamma: int = 4  # depth of trees
    tree_branches: Sequence[int] = (2, 3, 4)
    yardstick_gammas: Sequence[int] = (4, 6)  # draft lengths of transformers' assisted generation and prompt lookup
    rule_gammas: Sequence[int] = (4, 8)  # draft lengths on which two rules are compared
    rule_rounds: int = 1200  # rounds compared for each of these, at least
    max_new_tokens: int = 128
    repeats: int = 3
    budget: float | None = None  # seconds of one setting's turns after which no further repeat begins


FULL = BenchPlan()
#: Of the advice on which drafter to use, and of one's own prompts: only the lengths count.
HEAT = BenchPlan(gammas=(2, 3, 4, 5, 6), copied_gammas=(4, 8))
QUICK = BenchPlan(
    gammas=(4,),
    copied_gammas=(4,),
    tree_branches=(3,),
    yardstick_gammas=(4,),
    rule_gammas=(4,),
    rule_rounds=100,
    max_new_tokens=40,
    budget=10.0,
)


def planned(
    quick: bool, only: Sequence[str], names: Sequence[str], chat: bool = False, max_new_tokens: int | None = None
) -> BenchPlan:
    """The plan for these names; none named means all. chat: on prompts for models that answer.

    Raises SpecvizError (field ``only`` or ``preset``) for a drafter or a preset that does not exist.
    """
    for name in only:
        if name not in DRAFTERS:
            raise SpecvizError(
                "There is no drafter {name} to measure; choose from {names}.",
                "only",
                name=quoted(name),
                names=", ".join(DRAFTERS),
            )
    plan = QUICK if quick else FULL
    if process_count() > 1:
        # Processes that share a model must make the same passes, and each has a clock of its own.
        plan = replace(plan, budget=None)
    known = CHAT_PRESETS if chat else PRESETS
    presets = [preset_named(name, known) for name in names] or (known[:1] if quick else known)
    plan = replace(plan, presets=presets)
    return plan if max_new_tokens is None else replace(plan, max_new_tokens=max_new_tokens)


def preset_named(name: str, known: Sequence[Preset]) -> Preset:
    """Raises SpecvizError (field ``preset``) if there is none of this name."""
    for preset in known:
        if preset.name == name:
            return preset
    names = ", ".join(preset.name for preset in known)
    raise SpecvizError("There is no preset {name}; choose from {names}.", "preset", name=quoted(name), names=names)


def entrants(pair: ModelPair, plan: BenchPlan, names: Sequence[str]) -> Iterator[Contestant]:
    """Plain decoding and every drafter named, able to run or not; then the bare loop; then transformers."""
    yield Contestant(PLAIN)
    for name in names:
        drafter = drafter_class(pair, name)
        # A drafter that makes trees by default makes chains only with one branch.
        chain = 1 if "tree" in drafter.measured_as and drafter.default_branches > 1 else None
        for gamma in _gammas(pair, plan, drafter):
            yield Contestant(name, gamma, branches=chain)
        yield Contestant(name, AUTO, branches=chain)
        if "block" in drafter.measured_as:
            for gamma in plan.gammas:
                yield Contestant(name, gamma, branches=chain, rule="block")
        if "bits" in drafter.measured_as:
            for gamma in plan.gammas:
                yield Contestant(name, gamma, bits=BITS[-1])
        if "tree" in drafter.measured_as:
            for branches in plan.tree_branches:
                yield Contestant(name, plan.tree_gamma, branches=branches)
            yield Contestant(name, AUTO, branches=plan.tree_branches[-1])
    assisted = DraftModel.name in names and pair.draft is not None and pair.translation is None
    yield Contestant(PLAIN, engine="bare")
    if assisted:
        yield Contestant(DraftModel.name, plan.yardstick_gammas[0], engine="bare")
    yardsticks = [DraftModel.name] * assisted + [PromptLookup.name] * (PromptLookup.name in names)
    if yardsticks:
        yield Contestant(PLAIN, engine="transformers")
    for name, gamma in itertools.product(yardsticks, plan.yardstick_gammas):
        yield Contestant(name, gamma, engine="transformers")


def chains(pair: ModelPair, plan: BenchPlan) -> list[Contestant]:
    """Those of them that servers offer too, able to run or not: chains of a fixed length by each drafter's defaults."""
    return [
        one
        for one in entrants(pair, plan, DRAFTERS)
        if one == Contestant(one.mode, one.num_draft_tokens, one.branches)
        and isinstance(one.num_draft_tokens, int)
        and one.branches in (None, 1)
    ]


def takes_part(contestant: Contestant, temperature: float) -> bool:
    """Greedy drafts are compared with the target's choice, whatever the rule; and the bare loop is greedy only."""
    return contestant.engine != "bare" if temperature > 0 else contestant.rule == "auto"


def _gammas(pair: ModelPair, plan: BenchPlan, drafter: type[Drafter]) -> Sequence[int]:
    """Draft lengths of this drafter's chains. Some draft no deeper than they were trained to."""
    if drafter.copies:
        return plan.copied_gammas
    if issubclass(drafter, (AtOnce, FromLastState)) and drafter.name in pair.parts:
        return [gamma for gamma in plan.gammas if gamma <= drafter.most_depths(pair)]
    return plan.gammas
