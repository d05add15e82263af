"""What the Compare tab compares: its choices, the contest that they make, its progress, and what came of it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from specviz.bench.contest import Contest, Row
from specviz.bench.contestants import OTHERS, Contestant, Event, Failed, Progress, TimedRun
from specviz.bench.served import looked_at, servers_named
from specviz.bench.vary import each_of, read_vary
from specviz.records.errors import SpecvizError
from specviz.records.metrics import compare as compare_texts
from specviz.records.prompts import on_each, read_prompts
from specviz.records.runs import Run
from specviz.records.settings import AUTO, PLAIN, RunSettings
from specviz.records.words import Said, Words, joined, said
from specviz.ui.orders import Order, whole_up_to
from specviz.ui.runner import Batches, Runner, closing
from specviz.ui.ways import default_branches, drafter_of, refusal
from specviz.views.labels import title

if TYPE_CHECKING:
    from specviz.decoding.request import Request
    from specviz.drafters.base import Drafter
    from specviz.models.pair import ModelPair
    from specviz.rules.draft import Rule


#: As many branches as the drafter has by default.
OWN = 0

#: How often everything is measured at most.
MOST_REPEATS = 5

#: The fewest repeats with servers, whose turns are whole texts: an interval needs as many.
LEAST_WHOLE = 3

#: A SpecvizError's field -> the control of this tab that stands for it.
FIELDS = {"drafter": "drafters", "num_draft_tokens": "gammas", "branches": "widths", "rule": "rules"}


@dataclass(frozen=True, slots=True)
class ContestOptions:
    """The choices of the tab's fields."""

    drafters: Sequence[str]
    gammas: Sequence[int | str]  # numbers, or `AUTO`
    widths: Sequence[int]  # branches; `OWN` for a drafter's default
    rules: Sequence[str]  # besides the usual one
    repeats: int
    prompts: str = ""  # the visitor's, instead of the order's, see `read_prompts`
    vary: str = ""  # values of `OTHERS`, see `read_vary`
    server: str = ""  # addresses, see `servers_named`


@dataclass(frozen=True)
class Comparison:
    """A contest on this page. `progress` runs it."""

    runner: Runner
    orders: tuple[Order, ...]  # plain decoding of each prompt
    contestants: tuple[Contestant, ...]  # plain decoding first; branches and rules resolved
    contest: Contest
    halt: threading.Event
    left_out: tuple[Row, ...] = ()  # chosen, but their rule cannot judge them, or would judge alike
    on_file: bool = False  # on the visitor's prompts

    @property
    def plain(self) -> RunSettings:
        """The settings of plain decoding on the first prompt."""
        return self.orders[0].settings

    def progress(self) -> Iterator[tuple[Said, float]]:
        """A line of progress and the share that is done; again after each run, when its figures are there."""
        prompts, contest = [order.settings for order in self.orders], self.contest
        extra_runs = [contestant.on(prompt) for prompt in prompts for contestant in self.contestants] * contest.repeats
        arguments = self.orders[0], in_turn, prompts, self.contestants, contest.repeats
        batches: Batches[Event] = self.runner.batches(*arguments, extra_runs=extra_runs)
        for batch in closing(batches, self.halt):
            for event in batch:
                contest.hear(event)
                if not isinstance(event, Failed):
                    yield self._line_of(event), contest.fraction

    def _line_of(self, event: Progress | TimedRun) -> Said:
        contest, name = self.contest, title(self.contest.entries[event.number])
        if isinstance(event, Progress) and event.warming:
            return said("compare.warming_up", number=event.number + 1, of=len(self.contestants), what=name)
        what, left = said("compare.run", done=len(contest.runs), of=contest.count, what=name), contest.seconds_left
        if left is None:
            return said("compare.running", what=what)
        if left > 90:
            return said("compare.minutes_left", what=what, minutes=left / 60)
        return said("compare.seconds_left", what=what, seconds=left)


def in_turn(
    request: Request, prompts: Sequence[RunSettings], contestants: Sequence[Contestant], repeats: int
) -> Iterator[Event | None]:
    """The contestants' runs on each prompt, plain decoding first among them; each repeat has the next seed."""
    from specviz.bench.contesting import measure_contest
    from specviz.bench.turns import Amount

    amount = Amount(request.settings.max_new_tokens, repeats)
    return measure_contest((request.but(prompt) for prompt in prompts), contestants, amount)


def order_of(order: Order, contestant: Contestant) -> Order:
    """`order` as a contestant runs it."""
    return replace(order, settings=contestant.on(order.settings))


def time_of(comparison: Comparison, pair: ModelPair) -> Said:
    """How many runs it makes and about how long they take, were all as slow as plain decoding."""
    from specviz.bench.turns import WARM_UP_TOKENS

    contest, tokens = comparison.contest, comparison.plain.max_new_tokens
    if 1 not in pair.passes.seconds_by_width:  # not timed yet, or on a GPU that is lent for each call
        return said("compare.time_unknown", runs=contest.count, tokens=tokens)
    read = contest.count * tokens + len(contest.entries) * len(comparison.orders) * min(WARM_UP_TOKENS, tokens)
    seconds = read * pair.passes.seconds_by_width[1]
    key = "compare.time_minutes" if seconds > 90 else "compare.time_seconds"
    return said(key, runs=contest.count, tokens=tokens, seconds=max(1.0, seconds), minutes=seconds / 60)


# What came of it


def rows_of(comparison: Comparison, say: Words, over: bool) -> list[Row]:
    """A row for each contestant with its figures so far, and for those that failed or are left out, with the reason.

    over: see `Contest.rows`.
    """
    contest, rows = comparison.contest, comparison.contest.rows(over)
    rows = [
        replace(row, reason=say.reason(contest.failed[row.title])) if row.title in contest.failed else row
        for row in rows
    ]
    return rows if comparison.plain.sampling.greedy else [*rows, *comparison.left_out]


def texts_of(comparison: Comparison, pair: ModelPair) -> dict[str, Any] | None:
    """How the greedy texts compare with plain decoding's; None where they are sampled, or nothing is there yet."""
    contest = comparison.contest
    rows = enumerate(contest.entries)
    drafting = [number for number, row in rows if number and row.host is None and row.title not in contest.failed]
    prompts = range(len(comparison.orders))
    run_on = [(number, prompt) for number in drafting for prompt in prompts if contest.run_of(number, prompt)]
    if not comparison.plain.sampling.greedy or not run_on:
        return None
    partings = []
    for number, prompt in run_on:
        plain, run = (run_of(comparison, pair, who, prompt) for who in (0, number))
        if plain and run and (parting := compare_texts(plain, run)["parting"]):
            where = [said("compare.on_prompt", number=prompt + 1)] if comparison.on_file else []
            partings.append({"name": joined([title(contest.entries[number]), *where], ", "), **parting})
    return {"of": len(run_on), "partings": partings}


def run_of(comparison: Comparison, pair: ModelPair, number: int, prompt: int = 0) -> Run | None:
    """A contestant's run on a prompt in the first repeat; None before that is over."""
    from specviz.decoding.record import collect

    timed = comparison.contest.run_of(number, prompt)
    if timed is None:
        return None
    order = order_of(comparison.orders[prompt], comparison.contestants[number])
    return collect(order.request(pair, comparison.runner.deployment), timed.rounds)


# Choosing


def comparison_of(
    runner: Runner,
    pair: ModelPair,
    order: Order,
    options: ContestOptions,
    halt: threading.Event | None = None,
    *,
    look: bool = False,
) -> Comparison:
    """The checked comparison. look: servers are asked what they are, which takes a while.

    Raises SpecvizError whose field is a shared control's or one of `ContestOptions`.
    """
    from specviz.bench.contesting import entry_of

    orders, domains = on_prompts(runner, pair, order, options.prompts)
    for name in ("drafters", "gammas", "widths"):
        if not getattr(options, name) and not options.server.strip():
            raise SpecvizError("Choose at least one.", name)
    request, left_out = orders[0].request(pair, runner.deployment), []
    plain = Contestant.of(PLAIN)
    rows = {plain: entry_of(plain, request)}
    try:
        for contestant, judges in _drafting(runner, pair, orders[0], order.settings, options):
            if judges:
                # Each once, even where a rule that is asked for is the usual one.
                rows[contestant] = usual = entry_of(contestant, request)
            else:
                left_out.append(_left_out(usual, contestant.settings.rule))
    except SpecvizError as error:
        if error.field is None:
            raise
        control = "vary" if error.field in OTHERS and options.vary else error.field
        raise error.at(FIELDS.get(error.field, control)) from error
    listed = runner.deployment.servers
    # The page's key is its owner's: it goes where the owner says, not wherever a visitor points.
    for served in servers_named(options.server, listed, keyed=listed is not None):
        contestant = Contestant.by(looked_at(served, pair.texts.decode) if look else served)
        rows[contestant] = entry_of(contestant, request)
    chosen = repeats = whole_up_to(MOST_REPEATS, "repeats", options.repeats)
    if any(contestant.served for contestant in rows) and len(orders) * repeats < LEAST_WHOLE:
        repeats = LEAST_WHOLE
    contest = Contest([*rows.values()], domains or ("",), repeats, keeps_rounds=True)
    # Those that servers need besides are not counted: nobody has asked for them.
    asked = replace(contest, repeats=chosen).count
    if asked > runner.deployment.max_compare_runs:
        raise SpecvizError(
            "This makes {runs} runs, but this page allows at most {most}: choose fewer drafters, γ values, "
            "repeats or prompts.",
            "drafters",
            runs=asked,
            most=runner.deployment.max_compare_runs,
        )
    halt = halt or threading.Event()
    return Comparison(runner, orders, tuple(rows), contest, halt, tuple(left_out), bool(domains))


def _left_out(usual: Row, rule: str) -> Row:
    """The row of a rule that cannot judge these drafts, or would judge them alike. usual: that of the usual rule."""
    from specviz.rules import rule_named

    judge = rule_named(rule)
    reason = said("compare.paths_only" if judge.paths else "compare.chains_only")
    return replace(usual, rule=rule, lossless=judge.lossless, reason=reason)


def on_prompts(runner: Runner, pair: ModelPair, order: Order, text: str) -> tuple[tuple[Order, ...], tuple[str, ...]]:
    """Plain decoding of each of the visitor's prompts, and their domains; without any, of the order's prompt and
    none."""

    def checked(settings: RunSettings) -> Order:
        checked_order = replace(order, settings=Contestant.of(PLAIN).on(settings))
        checked_order.request(pair, runner.deployment)
        return checked_order

    if not text.strip():
        return (checked(order.settings),), ()
    prompts = read_prompts(text)
    orders = on_each(prompts, order.settings, pair.conversation, checked)
    return tuple(orders), tuple(prompt.domain for prompt in prompts)


def _drafting(
    runner: Runner, pair: ModelPair, plain: Order, settings: RunSettings, options: ContestOptions
) -> Iterator[tuple[Contestant, bool]]:
    """Every drafter with every γ, every number of branches it can have and every value of the parameters that it reads,
    by its usual rule and the others chosen; and whether it runs. settings: the parameters that are not varied.

    At temperature 0 all rules come to the same comparison, so none is added there; some judge chains only.
    """
    from specviz.bench.contesting import drafting
    from specviz.rules import rule_named

    base, vary = replace(settings, prompt=""), read_vary(options.vary, OTHERS)
    for name in options.drafters:
        read = [parameter for parameter in OTHERS if parameter in drafter_of(pair, name).parameters]
        combinations = list(each_of(vary, read))
        widths = _widths(pair, name, options.widths)
        for width, gamma, values in itertools.product(widths, _gammas(pair, name, options.gammas), combinations):
            usual = drafting(pair, name, base, num_draft_tokens=gamma, branches=width, rule="auto", **values)
            request = order_of(plain, usual).request(pair, runner.deployment)
            yield _with_rule(usual, request.rule.name), True
            for rule in options.rules:
                judges = _judges(rule_named(rule), request.drafter, width)
                yield _with_rule(usual, rule), judges and not request.settings.sampling.greedy


def _with_rule(contestant: Contestant, rule: str) -> Contestant:
    return replace(contestant, settings=replace(contestant.settings, rule=rule))


def _judges(rule: Rule, drafter: type[Drafter], width: int) -> bool:
    """True if the rule can judge drafts of this width differently from others: a single path is a block's to judge."""
    return width > 1 and drafter.draws_paths if rule.paths else rule.trees or width == 1


def _widths(pair: ModelPair, name: str, widths: Sequence[int]) -> list[int]:
    """The numbers of branches this drafter is compared with; all, if it takes none of them: a refusal then says why."""
    default = default_branches(pair, name)
    if "branches" not in drafter_of(pair, name).parameters:
        return [default]
    possible = list(dict.fromkeys(width or default for width in widths))
    return [width for width in possible if refusal(pair, name, width) is None] or possible


def _gammas(pair: ModelPair, name: str, gammas: Sequence[int | str]) -> Sequence[int | str]:
    """The values of γ this drafter is compared with; all, if it takes none of them: a refusal then says why."""
    least = drafter_of(pair, name).least_depth
    return [gamma for gamma in gammas if gamma == AUTO or int(gamma) >= least] or gammas
