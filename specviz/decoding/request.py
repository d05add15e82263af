"""A run's settings, checked against a pair and resolved once: all that the engine needs to know before a model runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from specviz.drafters.base import Drafter
from specviz.drafters.registry import drafter_class
from specviz.models.pair import ModelPair
from specviz.models.placement import check_default_device
from specviz.passes.fast_passes import FastPasses, kind_of
from specviz.passes.reading_checks import why_no_trees
from specviz.passes.roles import Role
from specviz.records.errors import SpecvizError, require_made_by
from specviz.records.runs import Prompt
from specviz.records.settings import AUTO, LONGEST_AUTO, RunSettings
from specviz.rules import choose_rule
from specviz.rules.draft import Rule
from specviz.rules.exact import MATCH
from specviz.rules.grammar import Grammar, Text
from specviz.rules.sampling import Warper

#: The depths among which γ = auto chooses where each has to be recorded.
RECORDED_DEPTHS = (0, 1, 2, 3, 4, 6, 8)

#: A larger tree costs more in the target pass than its last branches can gain.
MAX_TREE_TOKENS = 256


@dataclass(frozen=True)
class Request:
    """A checked order for one run; `prepare` makes it."""

    pair: ModelPair
    settings: RunSettings
    prompt: Prompt  # as the models read it
    drafter: type[Drafter]  # `Plain` if nothing is drafted
    branches: int  # draft tokens at each depth
    rule: Rule  # ``auto`` resolved
    warper: Warper  # for the target's logits and the drafter's
    passes: dict[Role, FastPasses]  # the pair's fast passes at that moment, by role
    grammar: Grammar | None = None  # masks the target's logits and the drafter's
    most_draft_tokens: int = LONGEST_AUTO  # if γ is chosen in each round

    @property
    def deciding_rule(self) -> Rule:
        """The rule that judges: at temperature 0 every rule becomes one comparison with the target's choice."""
        return MATCH if self.settings.sampling.greedy else self.rule

    @property
    def chooses_length(self) -> bool:
        """True if γ is chosen anew in each round."""
        return self.settings.drafter is not None and self.settings.num_draft_tokens == AUTO

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """How deep a round may draft, from 0 on if γ is chosen in each: only γ, or 0 in plain decoding.

        Depths at which the drafter has no draft are left out. Where rounds are recorded the depths are few, so that all
        can be recorded before one is timed."""
        most = self.settings.deepest_draft
        if not self.chooses_length:
            return (most,)
        depths = RECORDED_DEPTHS if kind_of(self.passes) == "graphs" else range(most + 1)
        most, least = min(most, self.most_draft_tokens), self.drafter.least_depth
        return tuple(depth for depth in depths if depth == 0 or least <= depth <= most)

    def allowed_depth(self, chosen: int, room: int) -> int:
        """How deep a round drafts for which `chosen` was chosen, and after which `room` draft tokens fit."""
        if not self.chooses_length:
            return min(chosen, room)
        return max(depth for depth in self.depths if depth <= min(chosen, room))

    @property
    def num_draft_tokens(self) -> int:
        """γ, the most if it is chosen in each round; 0 in plain decoding."""
        return self.depths[-1]

    @property
    def largest_draft(self) -> int:
        """The size of the largest possible draft, and so the coins that a round needs."""
        return self.drafter.largest_draft(self.num_draft_tokens, self.branches)

    def probabilities(self, logits: Tensor, *texts: Text) -> Tensor:
        """What the target's tokens are drawn from, [n, vocab], by its logits after the prompt and each of the texts."""
        return self.warper.probabilities(self.grammar.masked(logits, texts) if self.grammar else logits)

    def but(self, settings: RunSettings) -> Request:
        """The same pair and passes with other settings, checked; an equal prompt is not encoded again. Raises as
        `prepare` does."""
        same = (settings.prompt, settings.chat) == (self.settings.prompt, self.settings.chat)
        request = prepare(self.pair, settings, self.prompt if same else None)
        return replace(request, passes=self.passes, most_draft_tokens=self.most_draft_tokens)


def prepare(pair: ModelPair, settings: RunSettings, prompt: Prompt | None = None) -> Request:
    """Checks and resolves all settings that depend on the pair. Raises SpecvizError, with `field` set.

    prompt: the encoded prompt of the settings, where that exists already.
    """
    require_made_by("load_pair", ModelPair, "pair", pair)
    check_default_device()
    drafter = drafter_class(pair, settings.drafter)
    drafter.check(pair, settings.drafting)
    if 0 < settings.deepest_draft < drafter.least_depth:
        raise SpecvizError(
            "{drafter} drafts at least {least} tokens a round: set γ to {least} or more, or to auto; with {value} it "
            "would never draft.",
            "num_draft_tokens",
            drafter=drafter.name,
            least=drafter.least_depth,
            value=settings.num_draft_tokens,
        )
    branches = drafter.branches(pair, settings.drafting)
    if branches > 1:
        _check_tree(pair, settings, drafter, branches)
    rule = choose_rule(settings.rule, settings.drafter, branches > 1, drafter.draws_paths)
    if settings.drafter is None or settings.sampling.greedy:
        # Plain decoding judges nothing, and at temperature 0 all rules are the same: the record names the usual rule.
        rule = choose_rule("auto", settings.drafter, branches > 1, drafter.draws_paths)
    prompt = prompt or pair.encode(settings.prompt, chat=settings.chat)
    warper, grammar = Warper(settings.sampling), None
    if settings.grammar.strip():
        grammar = Grammar(settings.grammar, pair.tokenizer, pair.vocab_size, pair.eos_ids, len(prompt.ids))
    return Request(pair, settings, prompt, drafter, branches, rule, warper, dict(pair.passes.fast), grammar)


def _check_tree(pair: ModelPair, settings: RunSettings, drafter: type[Drafter], branches: int) -> None:
    """Raises SpecvizError if the drafts are trees that are too large or that the target cannot read."""
    size = drafter.largest_draft(settings.deepest_draft, branches)
    if size > MAX_TREE_TOKENS:
        raise SpecvizError(
            "A tree of {depth} × {branches} = {size} draft tokens is too large for one target pass: at most {most}.",
            "branches",
            depth=settings.deepest_draft,
            branches=branches,
            size=size,
            most=MAX_TREE_TOKENS,
        )
    if reason := why_no_trees(pair.target, pair.target_name):
        raise reason
