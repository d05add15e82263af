"""Is what is emitted the target's own law? Many short speculative runs of one prompt beside that law, enumerated.

And rules that are wrong on purpose: they exist here only, to be found out, and `speculate` knows none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from specviz.decoding.engine import Coins, Request, judge, kept_rows, make_drafter, most_draft_tokens
from specviz.decoding.round_record import TargetRows, Uniforms
from specviz.drafters import Draft, Drafter, Draws, Stepwise, TopChoices, Verdict, drafter_class
from specviz.drafters.base import chain
from specviz.drafters.stepwise import Children
from specviz.passes.cached_model import CachedModel, has_sliding_windows, reader
from specviz.passes.clock import Stopwatch
from specviz.records.errors import SpecvizError
from specviz.rules.sampling import Warper, draw_with_sums
from specviz.rules.verify import Decision, shape_of

#: How many tokens of each run are compared. The second one comes after an accepted token in the same target pass, or
#: after a recovered one in the next pass, from caches that were rewound.
COMPARED = 2

#: Runs are made as if they were to have one token more, so that a round may draft all that are compared.
RUN_TOKENS = COMPARED + 1

#: A wrong rule takes what is among so many of the target's likeliest.
LIKELIEST = 3

Judge = Callable[[Draft, TargetRows, Uniforms], Decision]
Outcome = tuple[int, ...]
Source = Literal["accepted", "recovered", "bonus", "plain"]


@dataclass(frozen=True, slots=True)
class LabRule:
    """A rule under test. engine_rule: what `engine.prepare` is asked for. lossless: whether it claims the target's law.

    judge: None for the engine's own. mislabelled: drafts are the drafter's likeliest tokens and claim to be drawn.
    """

    engine_rule: str = "auto"
    lossless: bool = False
    judge: Judge | None = None
    mislabelled: bool = False


def accept_everything(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """WRONG: keeps every draft token, of a tree the first branch. What is kept has the drafter's law."""
    return _keep(torch.ones_like(draft.tokens, dtype=torch.bool), draft, rows, uniforms)


def accept_likeliest(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """WRONG: keeps tokens among the target's `LIKELIEST` likeliest, without a coin, and else draws from the target.

    The tokens that are easy to guess come too often: once as the drafter's, once more as the target's.
    """
    judging = rows.raw[shape_of(draft.parents, draft.tokens.device).rows]
    least = judging.topk(LIKELIEST).values[:, -1:]
    return _keep((judging.gather(-1, draft.tokens.unsqueeze(-1)) >= least).squeeze(-1), draft, rows, uniforms)


def _keep(passed: Tensor, draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """Keeps tokens while they passed, and goes on with the target's own row: no residual, no coin."""
    shape = shape_of(draft.parents, draft.tokens.device)
    kept = shape.path(passed)
    row = shape.row_after(kept)
    p = rows.raw[shape.rows, draft.tokens]
    if rows.choices is not None:
        next_token, next_probs, next_sums = rows.choices.index_select(0, row)[0], None, None
    else:
        next_probs = rows.probs.index_select(0, row)[0]
        next_token, next_sums = draw_with_sums(next_probs, uniforms.next)
    return Decision(kept, p, torch.ones_like(p), passed.float(), row, next_token, next_probs, next_sums)


class Mislabelled(Draws):
    """WRONG: takes the likeliest tokens and hands the softmax on as if they had been drawn from it; their q is 1."""

    def one(self, row: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        return row.argmax(-1), self.warper.probabilities(row)

    def children(self, rows: Tensor, weights: Sequence[float], branches: int, uniforms: Tensor) -> Children:
        chosen = TopChoices().children(rows, weights, branches, uniforms)
        return replace(chosen, probs=self.warper.probabilities(rows)[chosen.places])


#: By name, the rules that can be tested; the drafter's usual one first, those that are wrong last.
LAB_RULES = {
    "auto": LabRule(lossless=True),
    "block": LabRule("block", lossless=True),
    "everything": LabRule(judge=accept_everything),
    "likeliest": LabRule(judge=accept_likeliest),
    "typical": LabRule("typical"),
    "mislabelled": LabRule(mislabelled=True),
}


@dataclass(frozen=True, slots=True)
class Law:
    """The exact law of the first two tokens, or of the first alone where it ends the text.

    outcomes: everything that can come, the likeliest first; texts: of each, token by token. probs: P(a)·P(b | a) by
    passes over one token each, as plain decoding makes them; they sum to 1 up to float32. low, high: the least and the
    most that passes over several tokens give it instead. rounding: the largest total variation between these laws.
    """

    outcomes: tuple[Outcome, ...]
    texts: tuple[tuple[str, ...], ...]
    probs: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    rounding: float


@dataclass(frozen=True, slots=True)
class Sample:
    """What one run emitted first, and where each token came from; ``plain`` is the target's own, nothing drafted."""

    outcome: Outcome
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class GreedyToken:
    """A token of one of two greedy texts. plain: of plain decoding, which comes first.

    margin: there, how far apart in log probability the target's two best lie.
    """

    plain: bool
    id: int
    text: str
    margin: float | None = None


def check(request: Request, rule: LabRule) -> None:
    """Raises SpecvizError where this request cannot be tested."""
    pair = request.pair
    if request.drafter is None:
        raise SpecvizError("Plain decoding drafts nothing, and no rule judges it: choose a drafter.", "drafter")
    if rule.mislabelled and not issubclass(drafter_class(pair, request.drafter), Stepwise):
        raise SpecvizError(
            "This drafter copies tokens and has no probabilities that could be mistaken: choose one with a model.",
            "rule",
        )
    room = pair.context_length
    if room is not None and len(request.prompt.ids) + RUN_TOKENS > room:
        raise SpecvizError("The prompt leaves no room for {n} new tokens: shorten it.", "prompt", n=RUN_TOKENS)


def examine(request: Request, rule: LabRule, runs: int) -> Iterator[Law | Sample | GreedyToken]:
    """The exact law, then what each of `runs` runs emitted; at temperature 0 the tokens of both texts instead.

    request: checked, as `trial_request` or a caller's own `engine.prepare` made it. Closing it stops within a run.
    """
    if request.sampling.greedy:
        yield from greedy_texts(request, rule)
        return
    yield exact_law(request)
    sampler = Sampler(request, rule)
    for _ in range(runs):
        yield sampler.sample()


class Start:
    """A target that has read a prompt up to its last token, as often as it is wanted.

    Its cache is rewound to the prompt; one with sliding windows, which can forget one round only, is filled again.
    """

    def __init__(self, request: Request, feature_layers: tuple[int, ...] = ()):
        self.request = request
        self.ids = list(request.prompt.ids)
        self.feature_layers = feature_layers
        self.rewinds = not has_sliding_windows(request.pair.target)
        self._read()

    def _read(self) -> None:
        pair = self.request.pair
        self._target = reader(pair.target, Stopwatch(pair.device), self.request.passes.get("target"))
        self._target.feature_layers = self.feature_layers
        self._target.prefill(self.ids)
        #: The target's hidden states of the prompt, where they are asked for.
        self.features = self._target.features

    def target(self) -> CachedModel:
        if self.rewinds:
            self._target.rewind(len(self.ids) - 1)
            self._target.stopwatch.take_spans()
        else:
            self._read()
        return self._target


class Sampler:
    """Makes short runs of one prompt, each with coins of its own and a drafter that knows the prompt only."""

    def __init__(self, request: Request, rule: LabRule):
        self.request = request
        self.rule = rule
        self.judge = rule.judge or (lambda draft, rows, uniforms: judge(request.rule, draft, rows, uniforms))
        self.warper = Warper(request.sampling)
        self.coins = Coins(request.seed, most_draft_tokens(request), request.pair.device)
        layers = self._drafter(CachedModel(request.pair.target, Stopwatch(request.pair.device)), 0).feature_layers
        with torch.inference_mode():
            self.start = Start(request, layers)
        self.runs = 0

    def sample(self) -> Sample:
        """The first two tokens of the next run; one where it ends the text."""
        emitted = list(self.run(RUN_TOKENS, COMPARED))
        return Sample(tuple(token for token, _ in emitted), tuple(source for _, source in emitted))

    def run(self, length: int, wanted: int) -> Iterator[tuple[int, Source]]:
        """The first `wanted` tokens of a run of `length`, as the rounds emit them, with their sources."""
        with torch.inference_mode():
            target = self.start.target()
            drafter = self._drafter(target, self.runs)
            drafter.prefill(self.start.ids, self.start.features)
        self.runs += 1
        text, given = list(self.start.ids), 0
        while given < wanted:
            with torch.inference_mode():
                emitted = self._round(target, drafter, text, length - given)
            for token, source in emitted[: wanted - given]:
                text.append(token)
                given += 1
                yield token, source
                if token in self.request.pair.eos_ids:
                    return

    def _round(self, target: CachedModel, drafter: Drafter, text: list[int], left: int) -> list[tuple[int, Source]]:
        """One round, as the engine makes it (`engine.speculate`), without its records."""
        committed, uniforms, budget = len(text), self.coins.flip(), min(self.request.num_draft_tokens, left - 1)
        copied = Draft.copied((), target.device)
        draft = drafter.propose(text, budget, uniforms.draft) if budget else copied
        rows = TargetRows.of(target.verify(text, draft.tokens, draft.parents), self.warper)
        # The engine knows what no draft comes to, whatever the rule.
        decision = (self.judge if draft.parents else _undrafted)(draft, rows, uniforms)
        path, row, next_token, tokens, choices = _on_host(draft, decision, rows)
        target.keep(committed, path)
        if budget:
            features = kept_rows(target.features, len(draft.parents), path)
            drafter.observe(Verdict(committed, path, next_token, choices, features))
        refused = any(parent + 1 == row for parent in draft.parents)
        last: Source = "plain" if not draft.parents else "recovered" if refused else "bonus"
        return [*((tokens[place], "accepted") for place in path), (next_token, last)]

    def _drafter(self, target: CachedModel, run: int) -> Drafter:
        request = replace(self.request, seed=self.request.seed + run)
        return make_drafter(request, self.warper, target, Mislabelled(self.warper) if self._mislabels else None)

    @property
    def _mislabels(self) -> bool:
        return self.rule.mislabelled and not self.request.sampling.greedy


def _undrafted(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    return judge("token", draft, rows, uniforms)


def _on_host(
    draft: Draft, decision: Decision, rows: TargetRows
) -> tuple[tuple[int, ...], int, int, list[int], tuple[int, ...]]:
    """Path, row, next token, draft tokens and the target's choices, in one transfer."""
    n = len(draft.parents)
    parts = [decision.kept.long(), decision.row.long(), decision.next_token.view(1), draft.tokens, rows.raw.argmax(-1)]
    flat = torch.cat(parts).tolist()
    kept, (row, next_token), tokens, choices = flat[:n], flat[n : n + 2], flat[n + 2 : 2 * n + 2], flat[2 * n + 2 :]
    return tuple(place for place in range(n) if kept[place]), row, next_token, tokens, tuple(choices)


Rows = Callable[[int], Tensor]


@torch.inference_mode()
def exact_law(request: Request) -> Law:
    """Enumerates what can come: a pass for the first token's row, and one for each token that it may be.

    Other passes read several tokens at once, as a round's do, and round differently in half precision: the law is taken
    by these too, after a draft token that is kept, and after a token that ended the round before.
    """
    start, warper, end = Start(request), Warper(request.sampling), request.pair.eos_ids
    laws = [_enumerate(*_by_single_passes(start, warper), end)]
    for parents in _shapes(request):
        laws += [_enumerate(*read(start, warper, parents), end) for read in (_after_kept, _after_ended)]
    plain = laws[0]
    outcomes = sorted(set().union(*laws), key=lambda outcome: (-plain.get(outcome, 0.0), outcome))
    texts = request.pair.texts
    return Law(
        outcomes=tuple(outcomes),
        texts=tuple(tuple(texts.chip(token) for token in outcome) for outcome in outcomes),
        probs=tuple(plain.get(outcome, 0.0) for outcome in outcomes),
        low=tuple(min(law.get(outcome, 0.0) for law in laws) for outcome in outcomes),
        high=tuple(max(law.get(outcome, 0.0) for law in laws) for outcome in outcomes),
        rounding=max(sum(abs(law.get(one, 0.0) - plain.get(one, 0.0)) for one in outcomes) / 2 for law in laws),
    )


def _enumerate(first: Tensor, after: Rows, end: frozenset[int]) -> dict[Outcome, float]:
    """P(a)·P(b | a) of every pair that can come, from the first row [vocab] and the row after each first token."""
    law: dict[Outcome, float] = {}
    for a in first.nonzero().flatten().tolist():
        p = first[a].item()
        if a in end:
            law[a,] = p
            continue
        row = after(a).double()
        for b in row.nonzero().flatten().tolist():
            law[a, b] = p * row[b].item()
    return law


def _shapes(request: Request) -> list[tuple[int, ...]]:
    """Drafts as large as those of the first and the second round of a run, by the parents of their tokens."""
    drafter = drafter_class(request.pair, request.drafter)
    branches = drafter.branches(request.pair, request.drafting)
    budgets = {min(request.num_draft_tokens, RUN_TOKENS - done - 1) for done in range(COMPARED)}
    if branches == 1:
        return [chain(budget) for budget in sorted(budgets)]
    return [(-1,) * drafter.most_tokens(budget, branches) for budget in sorted(budgets)]


def _by_single_passes(start: Start, warper: Warper) -> tuple[Tensor, Rows]:
    target, ids = start.target(), start.ids
    first = warper.probabilities(target.forward(target.unread(ids), keep=1))[0]
    target.rewind(len(ids))

    def after(a: int) -> Tensor:
        row = warper.probabilities(target.forward(target.unread([*ids, a]), keep=1))[0]
        target.rewind(len(ids))
        return row

    return first.double(), after


def _after_kept(start: Start, warper: Warper, parents: tuple[int, ...]) -> tuple[Tensor, Rows]:
    """Both rows from one target pass, over a draft that begins with the first token."""
    target, ids = start.target(), start.ids

    def rows(a: int) -> Tensor:
        read = warper.probabilities(target.verify(ids, _draft_of(a, parents, target), parents))
        target.rewind(len(ids) - 1)
        return read

    return rows(0)[0].double(), lambda a: rows(a)[1]


def _after_ended(start: Start, warper: Warper, parents: tuple[int, ...]) -> tuple[Tensor, Rows]:
    """The second row from the next round's pass, the first token having come after all that was drafted was refused."""
    target, ids = start.target(), start.ids
    first = warper.probabilities(target.verify(ids, _draft_of(0, parents, target), parents))[0]
    target.keep(len(ids), ())

    def after(a: int) -> Tensor:
        row = warper.probabilities(target.verify([*ids, a], _draft_of(0, parents, target), parents))[0]
        target.rewind(len(ids))
        return row

    return first.double(), after


def _draft_of(first: int, parents: tuple[int, ...], target: CachedModel) -> Tensor:
    """A draft of that shape whose first token is given; no row that is looked at sees the others."""
    tokens = torch.zeros(len(parents), dtype=torch.long, device=target.device)
    tokens[0] = first
    return tokens


def greedy_texts(request: Request, rule: LabRule) -> Iterator[GreedyToken]:
    """At temperature 0 the law is one text: plain decoding's tokens, then those that come of the rule."""
    length = request.max_new_tokens
    room = request.pair.context_length
    if room is not None:
        length = min(length, room - len(request.prompt.ids))
    texts = request.pair.texts
    for token, margin in _plain_text(request, length):
        yield GreedyToken(True, token, texts.chip(token), margin)
    for token, _ in Sampler(request, rule).run(length, length):
        yield GreedyToken(False, token, texts.chip(token))


def _plain_text(request: Request, length: int) -> Iterator[tuple[int, float]]:
    """Greedy tokens by passes over one token each, and the log probability between the best two at each."""
    with torch.inference_mode():
        target = Start(request).target()
    text = list(request.prompt.ids)
    for _ in range(length):
        with torch.inference_mode():
            logits = target.forward(target.unread(text), keep=1)[0]
            target.rewind(len(text))
            best = logits.float().topk(2).values
            token, margin = logits.argmax().item(), (best[0] - best[1]).item()
        text.append(token)
        yield token, margin
        if token in request.pair.eos_ids:
            return
