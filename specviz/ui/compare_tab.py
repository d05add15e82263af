"""The Compare tab: one prompt, several ways to draft and to verify, each measured beside plain decoding."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import gradio as gr

from specviz.bench.contestants import Contestant
from specviz.passes.zero_gpu import lent_by_the_call
from specviz.records.comparison import compare as compare_texts
from specviz.records.errors import SpecvizError
from specviz.records.runs import Run
from specviz.records.settings import AUTO, PLAIN
from specviz.records.words import Words
from specviz.ui import engine
from specviz.ui.components import compare_view
from specviz.ui.contest import Contest, order_of, title, turns_of
from specviz.ui.controls import Fields, choices
from specviz.ui.orders import Order
from specviz.ui.runner import Runner, closing
from specviz.ui.tabs import Desk, Tab
from specviz.ui.unwatched import REPORT_EVERY
from specviz.ui.visits import Visit
from specviz.ui.ways import WAYS, available, default_branches, drafter_of, refusal
from specviz.views import compare_messages as messages
from specviz.views.result_pages import comparison_page
from specviz.views.run_messages import passes_words
from specviz.views.whole_run import label

if TYPE_CHECKING:
    from specviz.drafters.base import Drafter
    from specviz.models.pair import ModelPair
    from specviz.rules.base import Rule

GAMMAS = (1, 2, 3, 4, 6, 8)

MOST_REPEATS = 5

#: As many branches as the drafter has by default.
OWN = 0

#: A SpecvizError's field -> the control of this tab that stands for it.
FIELDS = {"drafter": "drafters", "num_draft_tokens": "gammas", "branches": "widths", "rule": "rules"}


@dataclass(frozen=True, slots=True)
class Choice:
    """What is to be compared, as the tab's fields stand."""

    drafters: Sequence[str]
    gammas: Sequence[int | str]  # numbers, or `AUTO`
    widths: Sequence[int]  # branches; `OWN` for a drafter's default
    rules: Sequence[str]  # beside the usual one
    repeats: int


def create_compare_tab(desk: Desk) -> Tab:
    """Lays out what can be compared, the buttons, and the view of what comes of it."""
    runner, say = desk.runner, desk.say
    own: Fields = {}
    drafters = [name for name in WAYS if name != PLAIN]
    lengths = [AUTO, *(gamma for gamma in GAMMAS if gamma <= runner.deployment.max_draft_tokens)]
    with gr.Group(elem_classes=["sv-choice"]):
        own["drafters"] = gr.CheckboxGroup(choices(drafters, say), value=drafters, label=say("compare.drafters"))
        own["gammas"] = gr.CheckboxGroup(
            lengths, value=[one for one in (AUTO, 4) if one in lengths], label=say("compare.gammas")
        )
        own["widths"] = gr.CheckboxGroup(
            [(say("compare.own"), OWN), (say("compare.one_is_chain"), 1), ("2", 2), ("4", 4)],
            value=[OWN],
            label=say("compare.widths"),
        )
        own["rules"] = gr.CheckboxGroup(
            [
                (say("compare.block_for_chains"), "block"),
                (say("compare.multi_path_for_trees"), "multi_path"),
                (say("ways.rule_typical"), "typical"),
            ],
            value=[],
            label=say("compare.rules"),
        )
        own["repeats"] = gr.Slider(1, MOST_REPEATS, value=2, step=1, label=say("compare.repeats"))
    with gr.Row(elem_classes=["sv-actions"]):
        stop = gr.Button(say("page.stop"), variant="stop", visible=False, elem_id="stop-compare")
        go = gr.Button(say("compare.go"), variant="primary", elem_id="start-compare")
        two_rules = gr.Button(say("compare.two_rules"), elem_id="start-replay")
    view = compare_view(say)
    button, offer = desk.kept("comparison")

    def check(pair: ModelPair, order: Order, **asked: Any) -> None:
        contest_of(runner, pair, order, Choice(**asked))

    def stream(visit: Visit, order: Order, **asked: Any) -> Iterator[str]:
        if page := (yield from compare(runner, order, Choice(**asked), visit.halt, say)):
            desk.visitors.results.keep(visit.session, "comparison", page)

    def check_replay(pair: ModelPair, order: Order) -> None:
        replay_order(order).request(pair, runner.deployment)

    def stream_replay(visit: Visit, order: Order) -> Iterator[str]:
        return compare_rules(runner, order, visit.halt, say)

    def offered(pair: ModelPair) -> Any:
        names = [name for name in available(pair) if name != PLAIN]
        return gr.update(choices=choices(names, say), value=names)

    def waiting_replay(text: str) -> str:
        return messages.replay_message(messages.Replayed(), phase="running", text=text, fraction=0.0)

    desk.arrivals.append((own["drafters"], offered))
    told = messages.contest_phase_message, messages.contest_error_message
    comparison = desk.ordered(go, view, stream, *told, check, own, offered=[button], offer=offer)
    told_replay = waiting_replay, messages.replay_error_message
    return Tab([comparison, desk.ordered(two_rules, view, stream_replay, *told_replay, check_replay)], stop)


def contest_of(
    runner: Runner, pair: ModelPair, order: Order, choice: Choice, halt: threading.Event | None = None
) -> Contest:
    """The checked comparison. Raises SpecvizError whose field is a shared control's or one of `Choice`."""
    plain = Contestant(PLAIN)
    order_of(order, plain).request(pair, runner.deployment)
    for field in ("drafters", "gammas", "widths"):
        if not getattr(choice, field):
            raise SpecvizError("Choose at least one.", field)
    try:
        # Each once, even where a rule that is asked for is the usual one.
        entered = dict(_drafting(runner, pair, order, choice)).items()
    except SpecvizError as error:
        raise error.at(FIELDS.get(error.field, error.field)) from error
    contestants = (plain, *(contestant for contestant, runs in entered if runs))
    left_out = tuple(contestant for contestant, runs in entered if not runs)
    runs, most = len(turns_of(contestants)) * choice.repeats, runner.deployment.max_compare_runs
    if runs > most:
        raise SpecvizError(
            "That makes {runs} runs, more than the {most} that this page allows: choose fewer drafters, γ values or "
            "repeats.",
            "drafters",
            runs=runs,
            most=most,
        )
    return Contest(runner, order, contestants, choice.repeats, halt or threading.Event(), left_out)


def _drafting(runner: Runner, pair: ModelPair, order: Order, choice: Choice) -> Iterator[tuple[Contestant, bool]]:
    """Every drafter with every γ and every number of branches it can have, by its usual rule and the others asked for;
    and whether it runs.

    At temperature 0 all rules come to the same comparison, so none is added there; some judge chains only.
    """
    for name in choice.drafters:
        for width, gamma in itertools.product(_widths(pair, name, choice.widths), choice.gammas):
            usual = Contestant(name, gamma, branches=width)
            request = order_of(order, usual).request(pair, runner.deployment)
            yield replace(usual, rule=request.rule.name), True
            for rule in choice.rules:
                judges = _judges(engine.rule_named(rule), request.drafter, width)
                yield replace(usual, rule=rule), judges and not request.settings.sampling.greedy


def _judges(rule: Rule, drafter: type[Drafter], width: int) -> bool:
    """Whether it has something of its own to say about drafts of this width: of a single path, a block says it all."""
    return width > 1 and drafter.draws_paths if rule.paths else rule.trees or width == 1


def _widths(pair: ModelPair, name: str, asked: Sequence[int]) -> list[int]:
    """The numbers of branches this drafter is compared with; if it can do with none of them, it shall say why."""
    own = default_branches(pair, name)
    if "branches" not in drafter_of(pair, name).reads:
        return [own]
    widths = list(dict.fromkeys(width or own for width in asked))
    return [width for width in widths if refusal(pair, name, width) is None] or widths


def compare(
    runner: Runner, order: Order, choice: Choice, halt: threading.Event, say: Words
) -> Generator[str, None, str | None]:
    """Messages for the table: what is being measured, and the figures after every run. Returns the table as a page in a
    file, if there is something in it."""
    yield messages.contest_phase_message(say("common.preparing"), 0.0)
    try:
        pair = runner.store.get(order.pair)
        contest = contest_of(runner, pair, order, choice, halt)
        yield _table(contest, pair, "running", say("common.warming_up"), 0.0, say)
        finished = 0
        for text, fraction in contest.progress(say):
            runs = sum(map(len, contest.tallies.values()))
            new, finished = runs > finished, runs
            phase = messages.contest_phase_message(text, fraction)
            yield _table(contest, pair, "running", text, fraction, say) if new else phase
    except SpecvizError as error:
        yield messages.contest_error_message(say.error(error))
        return None
    yield _outcome(contest, pair, say)
    plain = contest.contestants[0]
    if plain not in contest.texts:
        return None
    return comparison_page(
        run_of(contest, pair, plain), lambda one: _outcome(contest, pair, one), machine_of(pair), say.language
    )


def _outcome(contest: Contest, pair: ModelPair, say: Words) -> str:
    """The table once it is over."""
    stopped = contest.halt.is_set()
    phase, text = ("stopped", say("compare.stopped")) if stopped else ("finished", _summary(contest, pair, say))
    return _table(contest, pair, phase, text, 1.0, say, texts_of(contest, pair, say))


def machine_of(pair: ModelPair) -> str | None:
    """What measures; a lent GPU is known only to the call that it is lent to."""
    return None if lent_by_the_call() else engine.name_of(pair.device)


def _table(
    contest: Contest,
    pair: ModelPair,
    phase: str,
    text: str,
    fraction: float,
    say: Words,
    texts: dict[str, Any] | None = None,
) -> str:
    rows = rows_of(contest, pair, say)
    return messages.contest_message(
        rows, phase=phase, text=text, fraction=fraction, repeats=contest.repeats, texts=texts
    )


def rows_of(contest: Contest, pair: ModelPair, say: Words) -> list[messages.ComparedRow]:
    """A row for each contestant with what it has come to so far, and for those that are left out, with the reason."""
    rows = [_row(contest, pair, contestant, say) for contestant in contest.contestants]
    if not contest.order.settings.sampling.greedy:
        for one in contest.left_out:
            reason = say("compare.paths_only" if engine.rule_named(one.rule).paths else "compare.chains_only")
            rows.append(replace(_row(contest, pair, one, say), reason=reason))
    return rows


def _row(contest: Contest, pair: ModelPair, contestant: Contestant, say: Words) -> messages.ComparedRow:
    plain = contestant.mode == PLAIN
    return messages.ComparedRow(
        drafter=label(contestant.mode, say),
        contestant=contestant,
        own_branches=not plain and contestant.branches == default_branches(pair, contestant.mode),
        rule="" if plain else _rule_words(contest, contestant, say),
        lossless=plain or engine.rule_named(contestant.rule).lossless,
        standing=contest.standing(contestant),
        repeats=min(contest.repeats, len(contest.tallies.get(contestant, ()))),
    )


def _rule_words(contest: Contest, contestant: Contestant, say: Words) -> str:
    """The rule that judges; at temperature 0 there is none to tell of, unless others were asked for."""
    if contest.order.settings.sampling.greedy:
        return say("compare.rules_alike") if contest.left_out else ""
    return say(f"ways.rule_{contestant.rule}")


def _summary(contest: Contest, pair: ModelPair, say: Words) -> str:
    first = contest.order.settings.seed
    plain = order_of(contest.order, contest.contestants[0]).request(pair, contest.runner.deployment)
    known = {
        "passes": passes_words(engine.kind_of(plain.passes), say),
        "runs": contest.repeats * len(contest.turns),
        "tokens": contest.order.settings.max_new_tokens,
        "first": first,
    }
    if contest.repeats == 1:
        told = say("compare.summary", **known)
    else:
        told = say("compare.summary_of_repeats", **known, last=first + contest.repeats - 1)
    disturbed = sum(map(len, contest.disturbed.values()))
    return f"{told} {say('compare.disturbed', n=disturbed)}" if disturbed else told


def texts_of(contest: Contest, pair: ModelPair, say: Words) -> dict[str, Any] | None:
    """How the greedy texts compare with plain decoding's; None where they are sampled, or nothing is there yet."""
    plain, *others = contest.contestants
    finished = [contestant for contestant in others if contestant in contest.texts]
    if not contest.order.settings.sampling.greedy or not finished:
        return None
    expected = run_of(contest, pair, plain)
    compared = {
        contestant: compare_texts(expected, run_of(contest, pair, contestant))["parting"] for contestant in finished
    }
    partings = [{"name": title(contestant, say), **parting} for contestant, parting in compared.items() if parting]
    return {"of": len(finished), "partings": partings}


def run_of(contest: Contest, pair: ModelPair, contestant: Contestant) -> Run:
    """Its run in the first repeat."""
    request = order_of(contest.order, contestant).request(pair, contest.runner.deployment)
    return engine.collect(request, contest.texts[contestant])


def replay_order(order: Order) -> Order:
    """The order whose chains of the draft model both rules judge. Raises SpecvizError where no coin is flipped."""
    if order.settings.sampling.greedy:
        raise SpecvizError(
            "At temperature 0 no coin is flipped and the two rules cannot differ: choose one above 0.", "temperature"
        )
    return order.but(drafter="draft_model", branches=1, exit_layer=None, bits=None, rule="token", coins="")


def compare_rules(runner: Runner, order: Order, halt: threading.Event, say: Words) -> Iterator[str]:
    """Messages for the two rules: totals as they grow, and at the end the rounds in which the rules differ."""
    counts, tokens, told = messages.Replayed(), 0, 0.0
    yield messages.replay_message(counts, phase="running", text=say("common.preparing"), fraction=0.0)
    try:
        order = replay_order(order)
        for batch in closing(runner.batches(order, engine.replay, "block"), halt):
            for token, block in batch:
                counts.add(token, block)
                tokens += len(token.emitted)
            if time.monotonic() - told > REPORT_EVERY:
                told = time.monotonic()
                fraction = tokens / order.settings.max_new_tokens
                yield messages.replay_message(
                    counts, phase="running", text=say("compare.judging_twice"), fraction=fraction
                )
    except SpecvizError as error:
        yield messages.replay_error_message(say.error(error))
        return
    phase = "stopped" if halt.is_set() else "finished"
    text = say(
        f"compare.replay_{phase}",
        gamma=order.settings.num_draft_tokens,
        temperature=say.number(order.settings.sampling.temperature, "g"),
        seed=order.settings.seed,
    )
    yield messages.replay_message(counts, phase=phase, text=text, fraction=1.0)
