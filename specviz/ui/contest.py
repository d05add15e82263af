"""A comparison of several ways to decode: which contestants, on which prompts, and their runs so far.

And the advice of the Models tab: every available drafter, measured in turn with plain decoding.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specviz.bench.advice import Work, WorkRow, offers_of
from specviz.bench.contestants import Contestant, Figures, Progress, TimedRun, busy, figures_of
from specviz.records.errors import SpecvizError
from specviz.records.prompts import on_each, read_prompts
from specviz.records.settings import PLAIN, RunSettings
from specviz.records.words import Said, Sentence, Words, said
from specviz.ui.components import as_text
from specviz.ui.orders import Order
from specviz.ui.runner import Runner, closing
from specviz.ui.ways import default_branches, drafter_of, refusal
from specviz.views.run_messages import passes_words, title
from specviz.views.terminal import advice, as_markdown

if TYPE_CHECKING:
    from specviz.bench.advising import Course
    from specviz.decoding.request import Request
    from specviz.drafters.base import Drafter
    from specviz.models.pair import ModelPair
    from specviz.rules.draft import Rule


#: As many branches as the drafter has by default.
OWN = 0

#: A SpecvizError's field -> the control of this tab that stands for it.
FIELDS = {"drafter": "drafters", "num_draft_tokens": "gammas", "branches": "widths", "rule": "rules"}


@dataclass(frozen=True, slots=True)
class Choice:
    """The choices of the tab's fields."""

    drafters: Sequence[str]
    gammas: Sequence[int | str]  # numbers, or `AUTO`
    widths: Sequence[int]  # branches; `OWN` for a drafter's default
    rules: Sequence[str]  # besides the usual one
    repeats: int
    prompts: str = ""  # one's own, instead of the order's, see `read_prompts`


@dataclass
class Contest:
    """The contestants take turns, several times over, on each prompt. `progress` runs them."""

    runner: Runner
    orders: tuple[Order, ...]  # one a prompt, otherwise the same
    contestants: tuple[Contestant, ...]  # plain decoding first; branches and rules resolved
    repeats: int
    halt: threading.Event
    left_out: tuple[Contestant, ...] = ()  # asked for, but their rule cannot judge them, or would judge alike
    domains: tuple[str, ...] = ()  # of each prompt, where they are one's own
    #: Those that are over; their group is the number of the prompt, and whom they took turns with.
    runs: dict[Contestant, list[TimedRun]] = field(default_factory=dict)

    @property
    def order(self) -> Order:
        """The order on the first prompt."""
        return self.orders[0]

    def progress(self) -> Iterator[tuple[Said, float]]:
        """A line of progress and the share that is done; again after each run, when its figures are there."""
        plain = order_of(self.order, self.contestants[0])
        asked = [[order_of(order, one).settings for one in self.contestants] for order in self.orders]
        others = [one for settings in asked for one in settings] * self.repeats
        work = self.runner.batches(plain, in_turn, asked, self.repeats, others=others)
        for batch in closing(work, self.halt):
            for one in batch:
                yield self._heard(one)

    def figures(self, contestant: Contestant) -> Figures | None:
        """The figures of the contestant's finished runs; None before the first."""
        own = self.runs.get(contestant)
        if not own:
            return None
        return figures_of(own, () if contestant == self.contestants[0] else self.runs[self.contestants[0]])

    @property
    def finished(self) -> int:
        """The number of finished runs."""
        return sum(map(len, self.runs.values()))

    @property
    def count(self) -> int:
        """The number of runs in all."""
        from specviz.bench.turns import runs_in_turn

        return len(self.orders) * self.repeats * runs_in_turn(len(self.contestants))

    def work(self) -> list[WorkRow]:
        """On prompts of one's own, the finished runs' figures by domain; else nothing."""
        return Work(self.contestants, self.domains, runs=self.runs).rows() if self.domains else []

    def first_run(self, contestant: Contestant, prompt: int) -> TimedRun | None:
        """Its run on a prompt in the first repeat, once that is over."""
        own = (run for run in self.runs.get(contestant, ()) if run.group[0] == prompt and run.repeat == 0)
        return next(own, None)

    @property
    def busy(self) -> bool:
        """True if something else wanted the processor."""
        return busy([run for runs in self.runs.values() for run in runs])

    def _heard(self, one: Progress | TimedRun) -> tuple[Said, float]:
        contestant = self.contestants[one.number]
        if isinstance(one, TimedRun):
            self.runs.setdefault(contestant, []).append(one)
        done, name = self.finished / self.count, title(contestant)
        if isinstance(one, Progress) and one.warming:
            return said("compare.warming_up", number=one.number + 1, of=len(self.contestants), what=name), done
        what = said("compare.run", done=self.finished, of=self.count, what=name)
        return self._with_time_left(what), done

    def _with_time_left(self, what: Said) -> Said:
        """With about how long the rest will take, once a run of some contestants has been timed."""
        seconds = [run.seconds for runs in self.runs.values() for run in runs]
        if not seconds:
            return said("compare.running", what=what)
        left = (self.count - self.finished) * sum(seconds) / len(seconds)
        if left > 90:
            return said("compare.minutes_left", what=what, minutes=left / 60)
        return said("compare.seconds_left", what=what, seconds=left)


def in_turn(
    request: Request, asked: Sequence[Sequence[RunSettings]], repeats: int
) -> Iterator[Progress | TimedRun | None]:
    """The contestants' runs, plain decoding first among them; each repeat has the next seed.

    asked: by prompt, the settings of all contestants.
    """
    from specviz.bench.turns import Plan, lane_of, on_each_prompt

    lanes = ([lane_of(request.but(settings)) for settings in contestants] for contestants in asked)
    return on_each_prompt(lanes, Plan(request.settings.max_new_tokens, repeats))


def order_of(order: Order, contestant: Contestant) -> Order:
    """`order` as a contestant runs it."""
    return replace(order, settings=contestant.applied(order.settings))


# Choosing


def contest_of(
    runner: Runner, pair: ModelPair, order: Order, choice: Choice, halt: threading.Event | None = None
) -> Contest:
    """The checked comparison. Raises SpecvizError whose field is a shared control's or one of `Choice`."""
    plain = Contestant(PLAIN)
    orders, domains = _on_prompts(runner, pair, order, choice.prompts)
    for name in ("drafters", "gammas", "widths"):
        if not getattr(choice, name):
            raise SpecvizError("Choose at least one.", name)
    try:
        # Each once, even where a rule that is asked for is the usual one.
        entered = dict(_drafting(runner, pair, orders[0], choice)).items()
    except SpecvizError as error:
        raise error.at(FIELDS.get(error.field, error.field)) from error
    contestants = (plain, *(contestant for contestant, runs in entered if runs))
    left_out = tuple(contestant for contestant, runs in entered if not runs)
    contest = Contest(runner, orders, contestants, choice.repeats, halt or threading.Event(), left_out, domains)
    if contest.count > runner.deployment.max_compare_runs:
        raise SpecvizError(
            "This makes {runs} runs, but this page allows at most {most}: choose fewer drafters, γ values, "
            "repeats or prompts.",
            "drafters",
            runs=contest.count,
            most=runner.deployment.max_compare_runs,
        )
    return contest


def _on_prompts(runner: Runner, pair: ModelPair, order: Order, text: str) -> tuple[tuple[Order, ...], tuple[str, ...]]:
    """The order on each prompt of one's own, and their domains; without any, the order itself and none."""
    if not text.strip():
        order_of(order, Contestant(PLAIN)).request(pair, runner.deployment)
        return (order,), ()

    def checked(settings: RunSettings) -> Order:
        made = replace(order, settings=settings)
        order_of(made, Contestant(PLAIN)).request(pair, runner.deployment)
        return made

    prompts = read_prompts(text)
    orders = on_each(prompts, order.settings, pair.conversation, checked)
    return tuple(orders), tuple(prompt.domain for prompt in prompts)


def _drafting(runner: Runner, pair: ModelPair, order: Order, choice: Choice) -> Iterator[tuple[Contestant, bool]]:
    """Every drafter with every γ and every number of branches it can have, by its usual rule and the others asked for;
    and whether it runs.

    At temperature 0 all rules come to the same comparison, so none is added there; some judge chains only.
    """
    from specviz.rules import rule_named

    for name in choice.drafters:
        for width, gamma in itertools.product(_widths(pair, name, choice.widths), choice.gammas):
            usual = Contestant(name, gamma, branches=width)
            request = order_of(order, usual).request(pair, runner.deployment)
            yield replace(usual, rule=request.rule.name), True
            for rule in choice.rules:
                judges = _judges(rule_named(rule), request.drafter, width)
                yield replace(usual, rule=rule), judges and not request.settings.sampling.greedy


def _judges(rule: Rule, drafter: type[Drafter], width: int) -> bool:
    """True if the rule can judge drafts of this width differently from others: a single path is a block's to judge."""
    return width > 1 and drafter.draws_paths if rule.paths else rule.trees or width == 1


def _widths(pair: ModelPair, name: str, asked: Sequence[int]) -> list[int]:
    """The numbers of branches this drafter is compared with; all, if it takes none of them: a refusal then says why."""
    own = default_branches(pair, name)
    if "branches" not in drafter_of(pair, name).reads:
        return [own]
    widths = list(dict.fromkeys(width or own for width in asked))
    return [width for width in widths if refusal(pair, name, width) is None] or widths


def advise(runner: Runner, order: Order, halt: threading.Event, say: Words) -> Iterator[str]:
    """Progress, then the advice, as Markdown; Stop ends it and keeps the figures so far. Raises SpecvizError for orders
    that cannot be measured."""
    yield as_text(say("common.preparing"))
    rows: Sequence[WorkRow] = ()
    failed: Sequence[tuple[str, SpecvizError | Sentence]] = ()
    pair = runner.store.get(order.pair)
    chains = chains_of(runner, pair, order)
    plain = order_of(order, Contestant(PLAIN))
    for batch in closing(runner.batches(plain, advising, chains, others=[order.settings] * len(chains)), halt):
        for course in batch:
            rows, failed = course.rows or rows, course.failed
        known = {"percent": round(100 * course.fraction), "seconds": f"{course.seconds_left:.0f}"}
        who = f" · {say.translated(title(course.contestant))}" if course.contestant else ""
        yield as_text(f"{say('advice.seconds_left', **known)}{who}")
    signed = say("models.found_wrong")
    faults = [f"{signed} {as_text(f'{name}: {say.reason(reason)}')}" for name, reason in failed]
    yield "\n\n".join((*_parts(rows, runner, order, pair, halt, say), *faults))


def advising(request: Request, chains: Sequence[Contestant]) -> Iterator[Course | None]:
    """The measuring itself, on the request's prompt."""
    from specviz.bench.advising import advise

    return advise([request], [""], [Contestant(PLAIN), *chains])


def _parts(
    rows: Sequence[WorkRow], runner: Runner, order: Order, pair: ModelPair, halt: threading.Event, say: Words
) -> Iterator[str]:
    from specviz.bench.machine import name_of
    from specviz.drafters.registry import servers_of
    from specviz.passes.static_passes import kind_of

    draft = pair.draft.name_or_path if order.pair.draft and pair.draft else None
    servers = servers_of(pair, {row.contestant.mode for row in rows} - {PLAIN})
    offers = offers_of(rows, draft, pair.translation is not None, servers)
    if halt.is_set() or not offers:
        yield as_text(say("advice.stopped" if offers else "advice.nothing"))
    if offers:
        request = order_of(order, Contestant(PLAIN)).request(pair, runner.deployment)
        passes = passes_words(kind_of(request.passes))
        temperature, machine = order.settings.sampling.temperature, name_of(pair.device)
        yield as_markdown(advice(offers, machine, pair.info().name, passes, temperature), say, as_text)


def chains_of(runner: Runner, pair: ModelPair, order: Order) -> list[Contestant]:
    """The contestants to measure. Raises SpecvizError for an order that is not allowed."""
    from specviz.bench.advising import require_chains
    from specviz.bench.benchmark import advised_chains

    deployment = runner.deployment
    order_of(order, Contestant(PLAIN)).request(pair, deployment)
    chains = [one for one in advised_chains(pair) if one.num_draft_tokens <= deployment.max_draft_tokens]
    require_chains([Contestant(PLAIN), *chains])
    return chains
