"""One round: draft, verify, judge, keep; with the coins that it flips and the judge that decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from specviz.decoding.request import Request
from specviz.drafters.base import DraftContext, Drafter
from specviz.drafters.choosers import Chooser, Draws, Paths, TopChoices
from specviz.passes.cached_model import CachedModel
from specviz.passes.cuda_graphs import GraphedPasses
from specviz.passes.devices import Mark, Stopwatch
from specviz.passes.fast_passes import FastPasses
from specviz.passes.kernels.judging import Judged, JudgedDraft
from specviz.passes.readers import StaticModel, new_cached_model
from specviz.passes.roles import TARGET
from specviz.records.settings import SetCoin, read_coins
from specviz.rules.draft import Decision, Draft, Rule, TargetRows, Uniforms, Verdict
from specviz.rules.exact import BLOCK, MATCH, TOKEN, TREE
from specviz.rules.grammar import Grammar
from specviz.rules.sampling import Warper, require_numbers
from specviz.rules.transfer import on_cpu, to_device, to_host

#: Makes a run's drafter.
BuildDrafter = Callable[[DraftContext], Drafter]


@dataclass
class Decoder:
    """Carries out the rounds of one text. In plain decoding the drafter proposes nothing."""

    target: CachedModel
    drafter: Drafter
    coins: Coins
    judge: Judge
    grammar: Grammar | None = None
    nothing: Draft = field(init=False)  # the draft of a round that proposes none
    marks: tuple[Mark, Mark, Mark] = field(init=False)  # of the last round: it began, had drafted and had verified

    def __post_init__(self) -> None:
        self.nothing = Draft.copied((), self.target.device)

    def prefill(self, committed: Sequence[int]) -> None:
        """Reads all but the last token of the prompt."""
        self.target.feature_layers = self.drafter.feature_layers
        self.target.prefill(committed)
        self.drafter.prefill(committed, self.target.features)
        self.begin(committed)

    def begin(self, committed: Sequence[int]) -> None:
        """Gets ready for the first round after a prompt that target and drafter have read."""

    def round(self, committed: Sequence[int], budget: int) -> Verdict:
        """One round, which drafts at most `budget` tokens deep."""
        clock = self.target.stopwatch
        began = clock.mark()
        uniforms = self.coins.flip()
        # 1. Draft.
        draft = self.drafter.propose(committed, budget, uniforms.draft) if budget else self.nothing
        drafted = clock.mark() if budget else began
        # 2. Verify: one target pass over all draft tokens.
        logits = self.target.verify(committed, draft.tokens, draft.parents)
        self.marks = began, drafted, clock.mark()
        # 3. Judge.
        verdict = self._judged(committed, draft, logits, uniforms)
        # 4. Keep: caches drop the rejected tokens, and the drafter learns the verdict.
        self.target.rewind_to_path(len(committed), verdict.path)
        features = _accepted_rows(self.target.features, len(draft.parents), verdict.path)
        observe = self.drafter.observe_draft if budget else self.drafter.observe_plain_step
        observe(len(committed), verdict, features)
        return verdict

    def _judged(self, committed: Sequence[int], draft: Draft, logits: Tensor, uniforms: Uniforms) -> Verdict:
        if self.grammar is None:
            return self.judge.verdict(draft, logits, uniforms)
        masked = self.grammar.masked(logits, self.grammar.texts_of(committed, draft))
        verdict = self.judge.verdict(draft, masked, uniforms)
        return replace(verdict, unmasked=logits, held_bytes=verdict.held_bytes + logits.nbytes)


def decoder_of(request: Request, build: BuildDrafter | None = None) -> Decoder:
    """The decoder for a request. build: makes the caller's own drafter instead of the request's."""
    target = new_cached_model(request.pair.target, Stopwatch(request.pair.device), request.passes.get(TARGET))
    fast = request.passes.get(TARGET)
    if isinstance(fast, GraphedPasses) and isinstance(target, StaticModel) and target.buffers is not fast.kept_buffers:
        # Another text has the buffers that the graphs work on: this run is plain, and its record says so.
        request.passes[TARGET] = FastPasses.unprepared(fast.static)
    drafter = (build or request.drafter)(context_of(request, target))
    return Decoder(target, drafter, Coins.of(request), judge_of(request), request.grammar)


def context_of(request: Request, target: CachedModel, chooser: Chooser | None = None) -> DraftContext:
    """The context of the request's drafter. Greedy decoding and lossy rules take top choices, others draw.

    chooser: another way to choose tokens, for rules that are not the engine's own (`specviz.decoding.lossless`).
    """
    if chooser is None:
        drawn = not request.settings.sampling.greedy and request.rule.lossless
        draws = Paths if request.rule.paths else Draws
        chooser = draws(request.warper) if drawn else TopChoices()
    pair, settings = request.pair, request.settings
    return DraftContext(
        pair, settings.drafting, request.branches, chooser, target, settings.seed, request.passes, request.grammar
    )


# The coins


class Coins:
    """Where coins are flipped: all randomness in a run is one stream of uniforms from one seed, unless set by hand.

    float32 values, the same on every device, dealt round by round; drawn for many rounds at once, because a small
    tensor costs as much as a large one, and so does each part that is taken of it.
    """

    COINS_AT_ONCE = 64

    def __init__(self, seed: int, largest_draft: int, device: torch.device, by_hand: Sequence[SetCoin] = ()):
        self.generator = torch.Generator().manual_seed(seed)
        self.largest_draft = largest_draft
        self.device = device
        self.by_hand = by_hand
        self.drawn = 0  # rounds whose coins are drawn
        self.left = 0  # of those drawn at once, rounds whose coins are not dealt yet
        self._dealt: Iterator[tuple[Tensor, Uniforms]] = iter(())

    @classmethod
    def of(cls, request: Request) -> Coins:
        settings = request.settings
        return cls(settings.seed, request.largest_draft, request.pair.device, read_coins(settings.coins))

    def flip(self) -> Uniforms:
        """The next round's coins."""
        return self._deal()[1]

    def row(self) -> Tensor:
        """The next round's coins in one row, see `Uniforms.of`: [2 · largest_draft + 1] float64."""
        return self._deal()[0]

    def _deal(self) -> tuple[Tensor, Uniforms]:
        dealt = next(self._dealt, None)
        if dealt is None:
            rows = to_device(self._draw().double(), self.device)
            self._dealt, self.left = zip(rows.unbind(), Uniforms.each(rows)), len(rows)
            dealt = next(self._dealt)
        self.left -= 1
        return dealt

    def _draw(self) -> Tensor:
        """The coins of the next rounds, [rounds, 2 · largest_draft + 1] float32, those set by hand in their places."""
        most = self.largest_draft
        coins = torch.rand(self.COINS_AT_ONCE, 2 * most + 1, generator=self.generator, dtype=torch.float32)
        for coin in self.by_hand:
            row, place = coin.round - self.drawn, 2 * most if coin.token is None else most + coin.token
            if 0 <= row < len(coins) and (coin.token is None or coin.token < most):  # a later token has no coin
                coins[row, place] = coin.u
        self.drawn += len(coins)
        return coins


# Who judges


class Judge:
    """Lets a rule decide, operation by operation, on any device; one transfer fetches the part that decoding needs."""

    def __init__(self, rule: Rule, warper: Warper):
        self.rule, self.warper = rule, warper

    def verdict(self, draft: Draft, logits: Tensor, uniforms: Uniforms) -> Verdict:
        """On a draft of n tokens, by the target's logits [n + 1, vocab] and the round's coins.

        Raises SpecvizError (field ``dtype``) where logits are not numbers.
        """
        if on_cpu(logits):  # on another device this would wait for it: the record looks, once its numbers are here
            require_numbers(logits.amax().item())
            _require_drawn_from_numbers(draft)
        return self.verdict_by_rows(draft, TargetRows.of(logits, self.warper), uniforms)

    def verdict_by_rows(self, draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Verdict:
        decision = self.rule.decide(draft, rows, uniforms)
        parts = {"token": draft.tokens, "accepted": decision.accepted, "next": decision.next_token}
        fetched = to_host(parts | {"choice": rows.likeliest})
        path = tuple([index for index, accepted in enumerate(fetched["accepted"]) if accepted])
        tokens = (*[fetched["token"][index] for index in path], fetched["next"])
        wide = (rows.logits, rows.probs, decision.next_probs, decision.next_sums, decision.drawn_from)
        held = _bytes_of(draft.probs, draft.logits, *wide)
        choices, details = tuple(fetched["choice"]), (rows, decision, uniforms)
        return Verdict(path, tokens, choices, draft.parents, lambda: draft, lambda: details, held)


class KernelJudge(Judge):
    """A `Judge` at a temperature and without filters, in one call of C++: by `TOKEN`, `BLOCK`, `TREE` and `MATCH`."""

    def __init__(self, rule: Rule, warper: Warper, temperature: float):
        super().__init__(rule, warper)
        self.temperature = temperature

    def verdict(self, draft: Draft, logits: Tensor, uniforms: Uniforms) -> Verdict:
        judged = JudgedDraft(draft, logits, uniforms, self.temperature, self.as_block)
        recall = self.recall(lambda: draft, lambda: logits, uniforms, judged)
        held = _bytes_of(draft.probs, draft.logits, logits, judged.numbers)
        return Verdict(judged.path, judged.tokens, judged.choices, draft.parents, lambda: draft, recall, held)

    @property
    def as_block(self) -> bool:
        return self.rule is BLOCK

    def recall(
        self, draft: Callable[[], Draft], logits: Callable[[], Tensor], uniforms: Uniforms, judged: Judged
    ) -> Callable[[], tuple[TargetRows, Decision, Uniforms]]:
        """What a verdict came from, of a draft and logits [n + 1, vocab] that are looked at only then."""

        def recalled() -> tuple[TargetRows, Decision, Uniforms]:
            if self.rule is MATCH:
                rows = TargetRows.of(logits(), self.warper)
                return rows, MATCH.decide(draft(), rows, uniforms), uniforms
            return TargetRows(logits(), judged.probs(), None, self.warper.changes_logits), judged.decision(), uniforms

        return recalled


def judge_of(request: Request) -> Judge:
    """The quickest judge for the request; all come to the same verdicts."""
    rule, warper, passes = request.deciding_rule, request.warper, request.passes.get(TARGET)
    temperature = warper.temperature_alone if rule in (TOKEN, BLOCK, TREE, MATCH) else None
    if passes is None or not passes.by_kernels or temperature is None or request.grammar is not None:
        return Judge(rule, warper)
    return KernelJudge(rule, warper, temperature)


def _bytes_of(*tensors: Tensor | None) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def _require_drawn_from_numbers(draft: Draft) -> None:
    """Where each drafted token has a row of its own, its own logit is enough: a NaN is always chosen."""
    rows = draft.logits if draft.probs is None else draft.probs
    if rows is not None:
        token_values = rows.gather(-1, draft.tokens.unsqueeze(-1)) if len(rows) == len(draft.parents) else rows
        require_numbers(token_values.amax().item(), drafted=True)


def _accepted_rows(features: Tensor | None, drafted: int, path: Sequence[int]) -> Tensor | None:
    """From a target pass over unread text and `drafted` tokens, the rows of the text and the accepted tokens."""
    if features is None:
        return None
    unread = features.shape[0] - drafted
    if list(path) == list(range(len(path))):
        return features[: unread + len(path)]
    rows = [*range(unread), *(unread + index for index in path)]
    return features.index_select(0, to_device(rows, features.device))
