"""The Compare tab: one prompt, several ways to draft and to verify, each measured beside plain decoding."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from specviz.bench.contest import Contestant
from specviz.decoding import engine
from specviz.models.pair import ModelPair
from specviz.passes.static_passes import kind_of
from specviz.records.comparison import compare as compare_texts
from specviz.records.errors import SpecvizError
from specviz.records.words import Words
from specviz.rules import rule_named
from specviz.ui.components import compare_view, verdicts
from specviz.ui.deployment import Settings
from specviz.ui.measurements import REPORT_EVERY, Contest, order_of, title
from specviz.ui.orders import Order
from specviz.ui.runner import Runner, closing
from specviz.ui.ways import PLAIN, WAYS, available, default_branches, label, refusal
from specviz.views import compare_messages as messages
from specviz.views.run_messages import passes_words

GAMMAS = (1, 2, 3, 4, 6, 8)
#: As many branches as the drafter has by default.
OWN = 0

#: A SpecvizError's field -> the control of this tab that stands for it.
FIELDS = {"drafter": "drafters", "num_draft_tokens": "gammas", "branches": "widths", "rule": "rules"}


@dataclass(frozen=True, slots=True)
class Choice:
    """What is to be compared. widths: branches, `OWN` for a drafter's default. rules: beside the usual one."""

    drafters: Sequence[str]
    gammas: Sequence[int]
    widths: Sequence[int]
    rules: Sequence[str]
    repeats: int


@dataclass(frozen=True)
class CompareTab:
    """The tab's components, by what they do. fields: by the name of the `Choice` field they fill."""

    fields: dict[str, gr.components.Component]
    go: gr.Button
    replay: gr.Button
    stop: gr.Button
    view: gr.HTML
    say: Words

    def validations(self, error: SpecvizError | None) -> list[dict[str, Any]]:
        """One verdict a field, in their order."""
        return verdicts(self.fields, error, self.say)


def create_compare_tab(settings: Settings, pair: ModelPair, say: Words) -> CompareTab:
    """Lays out what can be compared, the buttons, and the view of what came out."""
    fields: dict[str, gr.components.Component] = {}
    drafters = [name for name in available(pair) if name != PLAIN]
    gammas = [gamma for gamma in GAMMAS if gamma <= settings.max_draft_tokens]
    with gr.Group(elem_classes=["sv-choice"]):
        fields["drafters"] = gr.CheckboxGroup(
            [(say(f"ways.{name}"), name) for name in drafters], value=drafters, label=say("compare.drafters")
        )
        fields["gammas"] = gr.CheckboxGroup(
            gammas, value=[gamma for gamma in (2, 4) if gamma in gammas], label=say("compare.gammas")
        )
        fields["widths"] = gr.CheckboxGroup(
            [(say("compare.own"), OWN), (say("compare.one_is_chain"), 1), ("2", 2), ("4", 4)],
            value=[OWN],
            label=say("compare.widths"),
        )
        fields["rules"] = gr.CheckboxGroup(
            [(say("compare.block_for_chains"), "block"), (say("ways.rule_typical"), "typical")],
            value=[],
            label=say("compare.rules"),
        )
        fields["repeats"] = gr.Slider(1, 5, value=2, step=1, label=say("compare.repeats"))
    with gr.Row(elem_classes=["sv-actions"]):
        go = gr.Button(say("compare.go"), variant="primary", elem_id="start-compare")
        replay = gr.Button(say("compare.two_rules"), elem_id="start-replay")
        stop = gr.Button(say("page.stop"), variant="stop", visible=False, elem_id="stop-compare")
    return CompareTab(fields, go, replay, stop, compare_view(say), say)


def contest_of(
    runner: Runner, pair: ModelPair, order: Order, choice: Choice, halt: threading.Event | None = None
) -> Contest:
    """The checked comparison. Raises SpecvizError whose field is a shared control's or one of `Choice`."""
    plain = Contestant(PLAIN)
    order_of(order, plain).request(pair, runner.settings)
    for field in ("drafters", "gammas", "widths"):
        if not getattr(choice, field):
            raise SpecvizError("Choose at least one.", field)
    try:
        contestants = (plain, *_drafting(runner, pair, order, choice))
    except SpecvizError as error:
        raise error.at(FIELDS.get(error.field, error.field)) from error
    runs, most = len(contestants) * choice.repeats, runner.settings.max_compare_runs
    if runs > most:
        raise SpecvizError(
            "That makes {runs} runs, more than the {most} that this page allows: choose fewer drafters, γ values or "
            "repeats.",
            "drafters",
            runs=runs,
            most=most,
        )
    return Contest(runner, order, contestants, choice.repeats, halt or threading.Event())


def comparison_mistake(runner: Runner, order: Order, choice: Choice) -> SpecvizError | None:
    """What is wrong with an order to compare; what only a loaded pair can tell is checked when it is loaded."""
    pair = runner.store.loaded(order.pair)
    if pair is None:
        return None
    try:
        contest_of(runner, pair, order, choice)
    except SpecvizError as error:
        return error
    return None


def _drafting(runner: Runner, pair: ModelPair, order: Order, choice: Choice) -> Iterator[Contestant]:
    """Every drafter with every γ and every number of branches it can have, by its usual rule and the others asked for.

    At temperature 0 all rules come to the same comparison, so none is added there.
    """
    for name in choice.drafters:
        for width, gamma in itertools.product(_widths(pair, name, choice.widths), choice.gammas):
            usual = Contestant(name, gamma, branches=width)
            request = order_of(order, usual).request(pair, runner.settings)
            yield replace(usual, rule=request.rule)
            for rule in () if request.sampling.greedy else choice.rules:
                if rule_named(rule).trees or request.rule == "token":
                    yield replace(usual, rule=rule)


def _widths(pair: ModelPair, name: str, asked: Sequence[int]) -> list[int]:
    """The numbers of branches this drafter is compared with; if it can do with none of them, it shall say why."""
    own = default_branches(pair, name)
    if "branches" not in WAYS[name]:
        return [own]
    widths = list(dict.fromkeys(width or own for width in asked))
    return [width for width in widths if refusal(pair, name, width) is None] or widths


def compare(runner: Runner, order: Order, choice: Choice, halt: threading.Event, say: Words) -> Iterator[str]:
    """Messages for the table: what is being measured, and the figures after every run."""
    yield messages.contest_phase_message(say("common.preparing"), 0.0)
    try:
        pair = runner.store.get(order.pair)
        contest = contest_of(runner, pair, order, choice, halt)
        yield _table(contest, "running", say("common.warming_up"), 0.0, say)
        finished = 0
        for text, fraction in contest.progress(say):
            runs = sum(map(len, contest.tallies.values()))
            new, finished = runs > finished, runs
            phase = messages.contest_phase_message(text, fraction)
            yield _table(contest, "running", text, fraction, say) if new else phase
    except SpecvizError as error:
        yield messages.contest_error_message(say.error(error))
        return
    phase, text = ("stopped", say("compare.stopped")) if halt.is_set() else ("finished", _summary(contest, pair, say))
    yield _table(contest, phase, text, 1.0, say, _texts(contest, pair, say))


def _table(
    contest: Contest, phase: str, text: str, fraction: float, say: Words, texts: dict[str, Any] | None = None
) -> str:
    rows = [_row(contest, contestant, say) for contestant in contest.contestants]
    return messages.contest_message(
        rows, phase=phase, text=text, fraction=fraction, repeats=contest.repeats, texts=texts
    )


def _row(contest: Contest, contestant: Contestant, say: Words) -> messages.Row:
    plain = contestant.mode == PLAIN
    return messages.Row(
        drafter=label(contestant.mode, say),
        contestant=contestant,
        rule="" if plain or contest.order.temperature == 0 else say(f"ways.rule_{contestant.rule}"),
        lossless=plain or rule_named(contestant.rule).lossless,
        standing=contest.standing(contestant),
        repeats=len(contest.tallies.get(contestant, ())),
    )


def _summary(contest: Contest, pair: ModelPair, say: Words) -> str:
    first = contest.order.seed
    passes = kind_of(contest.order.request(pair, contest.runner.settings).passes)
    known = {
        "passes": passes_words(passes, say),
        "runs": contest.repeats * len(contest.contestants),
        "tokens": f"{contest.order.max_new_tokens:.0f}",
        "first": f"{first:.0f}",
    }
    if contest.repeats == 1:
        return say("compare.summary", **known)
    return say("compare.summary_of_repeats", **known, last=f"{first + contest.repeats - 1:.0f}")


def _texts(contest: Contest, pair: ModelPair, say: Words) -> dict[str, Any] | None:
    """How the greedy texts compare with plain decoding's; None where they are sampled, or nothing is there yet."""
    plain, *others = contest.contestants
    finished = [contestant for contestant in others if contestant in contest.texts]
    if contest.order.temperature != 0 or not finished:
        return None

    def run(contestant: Contestant) -> Any:
        request = order_of(contest.order, contestant).request(pair, contest.runner.settings)
        return engine.collect(request, contest.texts[contestant])

    expected = run(plain)
    compared = {contestant: compare_texts(expected, run(contestant))["parting"] for contestant in finished}
    partings = [{"name": title(contestant, say), **parting} for contestant, parting in compared.items() if parting]
    return {"of": len(finished), "partings": partings}


def replay_order(order: Order) -> Order:
    """The order whose chains of the draft model both rules judge. Raises SpecvizError where no coin is flipped."""
    if order.temperature == 0:
        raise SpecvizError(
            "At temperature 0 no coin is flipped and the two rules cannot differ: choose one above 0.", "temperature"
        )
    return replace(order, drafter="draft_model", branches=1, exit_layer=None, rule="token")


def replay_mistake(runner: Runner, order: Order) -> SpecvizError | None:
    """The same of an order to replay."""
    pair = runner.store.loaded(order.pair)
    try:
        checked = replay_order(order)
        if pair is not None:
            checked.request(pair, runner.settings)
    except SpecvizError as error:
        return error
    return None


def replay(runner: Runner, order: Order, halt: threading.Event, say: Words) -> Iterator[str]:
    """Messages for the two rules: totals as they grow, and at the end the rounds in which the rules differ."""
    counts, tokens, told = messages.Replayed(), 0, 0.0
    yield messages.replay_message(counts, phase="running", text=say("common.preparing"), fraction=0.0)
    try:
        order = replay_order(order)
        for batch in closing(runner.replays(order, "block"), halt):
            for token, block in batch:
                counts.add(token, block)
                tokens += len(token.emitted)
            if time.monotonic() - told > REPORT_EVERY:
                told = time.monotonic()
                fraction = tokens / order.max_new_tokens
                yield messages.replay_message(
                    counts, phase="running", text=say("compare.judging_twice"), fraction=fraction
                )
    except SpecvizError as error:
        yield messages.replay_error_message(say.error(error))
        return
    phase = "stopped" if halt.is_set() else "finished"
    text = say(
        f"compare.replay_{phase}",
        gamma=f"{order.num_draft_tokens:.0f}",
        temperature=f"{order.temperature:g}",
        seed=f"{order.seed:.0f}",
    )
    yield messages.replay_message(counts, phase=phase, text=text, fraction=1.0)
