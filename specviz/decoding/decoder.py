"""The round: draft, verify in one target pass, judge, keep. And what carries it out, built from a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from specviz.decoding.coins import Coins
from specviz.decoding.judging import Judge, judge_of
from specviz.decoding.request import Request
from specviz.drafters.base import DraftContext, Drafter
from specviz.drafters.choosers import Chooser, Draws, Paths, TopChoices
from specviz.passes.cached_model import CachedModel, reader
from specviz.passes.devices import Mark, Stopwatch
from specviz.records.coins import read_coins
from specviz.rules.draft import Draft, Uniforms, Verdict, depth
from specviz.rules.sampling import Warper, require_numbers
from specviz.rules.transfer import on_cpu, to_device
from specviz.theory.draft_length import DraftLength


@dataclass
class Decoder:
    """The target, drafter, coins and rule of one text, and what decides how deep to draft. In plain decoding the
    drafter proposes nothing."""

    target: CachedModel
    drafter: Drafter
    coins: Coins
    judge: Judge
    length: DraftLength
    nothing: Draft = field(init=False)  # the draft of a round that proposes none
    marks: tuple[Mark, Mark, Mark] | None = None  # of the last round: when it began, had drafted and had verified

    def __post_init__(self) -> None:
        self.nothing = Draft.copied((), self.target.device)

    def round(self, committed: Sequence[int], budget: int) -> Verdict:
        """One round: draft up to `budget` tokens deep, verify them in one target pass, judge, keep."""
        clock = self.target.stopwatch
        began = clock.mark()
        uniforms = self.coins.flip()
        draft = self.draft(committed, budget, uniforms)
        drafted = clock.mark() if budget else began
        logits = self.target.verify(committed, draft.tokens, draft.parents)
        self.marks = began, drafted, clock.mark()
        if on_cpu(logits):  # elsewhere that would take a wait: the record looks, once its numbers are here
            require_numbers(logits.amax().item())
            _require_drawn_from_numbers(draft)
        judged = self.judge(draft, logits, uniforms)
        self.keep(len(committed), judged, asked=budget > 0)
        self.length.observe(depth(draft.parents), len(judged.path))
        return judged

    def prefill(self, committed: Sequence[int]) -> None:
        """Reads all but the last token of the prompt."""
        self.target.feature_layers = self.drafter.feature_layers
        self.target.prefill(committed)
        self.drafter.prefill(committed, self.target.features)

    def draft(self, committed: Sequence[int], budget: int, uniforms: Uniforms) -> Draft:
        return self.drafter.propose(committed, budget, uniforms.draft) if budget else self.nothing

    def keep(self, committed: int, judged: Verdict, asked: bool) -> None:
        """Drops refused tokens from the caches. asked: the drafter was to propose something."""
        self.target.keep(committed, judged.path)
        features = _kept_rows(self.target.features, len(judged.draft.parents), judged.path)
        hear = self.drafter.observe if asked else self.drafter.watch
        hear(committed, judged, features)


def decoder_of(
    request: Request,
    length: DraftLength,
    clock: Stopwatch | None = None,
    judge: Judge | None = None,
    build: Callable[[DraftContext], Drafter] | None = None,
) -> Decoder:
    """Builds what carries out a request. clock, judge, build: the caller's own instead of the engine's stopwatch, the
    request's rule and its drafter."""
    pair, warper = request.pair, Warper(request.settings.sampling)
    target = reader(pair.target, clock or Stopwatch(pair.device), request.passes.get("target"))
    drafter = (build or request.drafter)(setting_of(request, target, warper))
    by_hand = read_coins(request.settings.coins)
    coins = Coins(request.settings.seed, request.most_draft_tokens, pair.device, by_hand)
    return Decoder(target, drafter, coins, judge or judge_of(request, request.rule), length)


def setting_of(request: Request, target: CachedModel, warper: Warper, chooser: Chooser | None = None) -> DraftContext:
    """What the request's drafter is built from. Greedy decoding and lossy rules take top choices, all else draws.

    chooser: another way to choose tokens, for rules that are not the engine's own (`specviz.decoding.lossless`).
    """
    drawn = not request.settings.sampling.greedy and request.rule.lossless
    draws = Paths if request.rule.paths else Draws
    return DraftContext(
        pair=request.pair,
        params=request.settings.drafting,
        branches=request.branches,
        chooser=chooser or (draws(warper) if drawn else TopChoices()),
        target=target,
        seed=request.settings.seed,
        passes=request.passes,
    )


def _require_drawn_from_numbers(draft: Draft) -> None:
    """Looks at the drafted tokens alone where each has a row of its own: there, what is no number is chosen."""
    rows = draft.logits if draft.probs is None else draft.probs
    if rows is not None:
        own = rows.gather(-1, draft.tokens.unsqueeze(-1)) if len(rows) == len(draft.parents) else rows
        require_numbers(own.amax().item(), drafted=True)


def _kept_rows(features: Tensor | None, drafted: int, path: Sequence[int]) -> Tensor | None:
    """From a target pass over unread text and `drafted` tokens, the rows of the text and the kept tokens."""
    if features is None:
        return None
    unread = features.shape[0] - drafted
    if list(path) == list(range(len(path))):
        return features[: unread + len(path)]
    rows = [*range(unread), *(unread + index for index in path)]
    return features.index_select(0, to_device(rows, features.device))
