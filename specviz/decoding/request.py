"""A run's settings, checked against its pair before any model runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from specviz.drafters.base import Drafter
from specviz.drafters.registry import drafter_class
from specviz.models.pair import ModelPair
from specviz.passes.reading_checks import why_no_trees
from specviz.passes.static_passes import FastPasses
from specviz.records.errors import SpecvizError
from specviz.records.runs import Prompt
from specviz.records.settings import AUTO, LONGEST_AUTO, RunSettings
from specviz.rules import choose_rule, rule_named
from specviz.rules.draft import Rule

#: A larger tree costs more in the target pass than its last branches can gain.
MAX_TREE_TOKENS = 256


@dataclass(frozen=True)
class Request:
    """A checked order for one run; `prepare` makes it."""

    pair: ModelPair
    settings: RunSettings
    prompt: Prompt  # as the models read it
    rule: Rule  # ``auto`` resolved
    passes: Mapping[str, FastPasses] = field(default_factory=dict)  # the pair's fast passes at that moment
    longest: int = LONGEST_AUTO  # the most that γ = auto may be

    @property
    def drafter(self) -> type[Drafter]:
        """The drafter's class; `Plain` if nothing is drafted."""
        return drafter_class(self.pair, self.settings.drafter)

    @property
    def num_draft_tokens(self) -> int:
        """γ, the most if it is chosen in each round; 0 in plain decoding."""
        most = self.settings.deepest_draft
        return min(most, self.longest) if self.chooses_length else most

    @property
    def chooses_length(self) -> bool:
        return self.settings.drafter is not None and self.settings.num_draft_tokens == AUTO

    @property
    def branches(self) -> int:
        """Draft tokens at each depth."""
        return self.drafter.branches(self.pair, self.settings.drafting)

    @property
    def most_draft_tokens(self) -> int:
        """The size of the largest possible draft, and so the coins that a round needs."""
        return self.drafter.most_tokens(self.num_draft_tokens, self.branches)

    def but(self, settings: RunSettings) -> Request:
        """The same pair and the same passes with other settings, checked. Raises as `prepare` does."""
        return replace(prepare(self.pair, settings), passes=self.passes)


def prepare(pair: ModelPair, settings: RunSettings) -> Request:
    """Checks what depends on the pair. Raises SpecvizError, with `field` set."""
    drafter = drafter_class(pair, settings.drafter)
    drafter.check(pair, settings.drafting)
    if settings.drafter is None:
        if settings.rule != "auto":
            rule_named(settings.rule)
        rule = rule_named("token")
    else:
        rule = fitting_rule(pair, settings, settings.rule)
        if settings.sampling.greedy:
            # At temperature 0 every rule reduces to one comparison with the target's choice.
            rule = fitting_rule(pair, settings, "auto")
    return Request(pair, settings, pair.encode(settings.prompt, chat=settings.chat), rule, dict(pair.passes.fast))


def fitting_rule(pair: ModelPair, settings: RunSettings, name: str) -> Rule:
    """The rule with this name, ``auto`` resolved. Raises SpecvizError if these drafts are trees that the target cannot
    read or the rule cannot judge."""
    drafter = drafter_class(pair, settings.drafter)
    branches = drafter.branches(pair, settings.drafting)
    size = drafter.most_tokens(settings.deepest_draft, branches)
    if branches > 1 and size > MAX_TREE_TOKENS:
        raise SpecvizError(
            "A tree of {depth} × {branches} = {size} draft tokens is too large for one target pass: at most {most}.",
            "branches",
            depth=settings.deepest_draft,
            branches=branches,
            size=size,
            most=MAX_TREE_TOKENS,
        )
    if branches > 1 and (reason := why_no_trees(pair.target, pair.target_name)):
        raise reason
    return choose_rule(name, settings.drafter, branches > 1, drafter.draws_paths)
