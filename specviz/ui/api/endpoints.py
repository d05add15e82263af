"""What programs can call on the page: an `Endpoint` each, which says what it takes, checks and answers.

They run what the tabs run, on the page's own pair. A growing answer is sent at each stage, complete at last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from specviz.bench.contestants import OTHERS
from specviz.bench.duel import Duel
from specviz.drafters import DRAFTERS
from specviz.records.errors import SpecvizError, quoted
from specviz.records.rules import LAB_RULES, UNUSUAL
from specviz.records.runs import Round, Run
from specviz.records.settings import AUTO, PLAIN, SETTINGS, Setting, is_whole
from specviz.records.words import Said, words
from specviz.ui.contest import MOST_REPEATS, OWN, ContestOptions, comparison_of, rows_of, texts_of
from specviz.ui.device import PairName
from specviz.ui.orders import Order, read_form
from specviz.ui.runner import Batches, Runner
from specviz.ui.tabs.compare import machine_of
from specviz.ui.tabs.lossless import (
    MOST_RUNS,
    MOST_SUPPORT,
    Trial,
    counts_of,
    results_of,
    test_of,
    trial_request,
)
from specviz.ui.tabs.race import duel_events, progress, race_request
from specviz.ui.ways import available
from specviz.views import answers

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair

#: A call's values by parameter; its answers; a function that receives a line of progress and the share that is done.
Values = Mapping[str, Any]
Answers = Iterator[dict[str, Any]]
Report = Callable[[Said, float], None]

#: The API speaks the page's first language.
SAY = words()

#: There is no Stop here: a caller who leaves closes the iterator.
NEVER = threading.Event()


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an endpoint, with a type that JSON has. required: a call without it is refused."""

    kind: Any
    about: str
    default: Any = None
    required: bool = False


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A function of the API.

    begin(runner, values, report): checks the values and returns the work, which is done when its turn has come.
    Raises SpecvizError, whose field is a parameter.
    """

    about: str
    parameters: Mapping[str, Parameter]
    begin: Callable[[Runner, Values, Report], Answers]
    kind: str = "api"  # its name in the line
    grows: bool = False  # whether there is more than one answer


def _parameter(row: Setting) -> Parameter:
    """A setting as a parameter."""
    kind = row.kind | str if AUTO in row.choices else row.kind
    return Parameter(kind if row.default is not None else kind | None, row.about, row.default)


#: The settings of a run: the page's controls.
RUN = {name: _parameter(row) for name, row in SETTINGS.items()} | {
    "prompt": Parameter(str, SETTINGS["prompt"].about, required=True),
    "drafter": Parameter(str | None, f"{', '.join(DRAFTERS)}, or plain for none; the pair's usual one if left out"),
}

_COMPARED = ("prompt", "temperature", "top_k", "top_p", "min_p", "max_new_tokens", "seed", "chat", "grammar")


def _order_of(runner: Runner, values: Values, **fixed: Any) -> tuple[ModelPair, Order]:
    pair = runner.store.get(PairName())
    settings = {name: values[name] for name in RUN if name in values} | fixed
    if settings.get("drafter") is None:
        settings["drafter"] = runner.store.usual(pair)
    return pair, Order(PairName(), read_form(settings)).with_ready_passes(pair)


# --- one run ----------------------------------------------------------------------------------------------------------


def _generate(runner: Runner, values: Values, report: Report) -> Answers:
    return (run.to_dict() for _, run in _run_in_batches(runner, values, report) if run)


def _rounds(runner: Runner, values: Values, report: Report) -> Answers:
    # By index, so that no message has what the one before had: Gradio sends what differs between two, and errs where
    # lists within lists get shorter.
    return (
        {"rounds": {str(round_.index): asdict(round_) for round_ in batch}, "trace": run and run.to_dict()}
        for batch, run in _run_in_batches(runner, values, report)
    )


def _run_in_batches(runner: Runner, values: Values, report: Report) -> Iterator[tuple[list[Round], Run | None]]:
    """Its rounds in batches, and then the run."""
    pair, order = _order_of(runner, values)
    request = order.request(pair, runner.deployment)

    def work() -> Iterator[tuple[list[Round], Run | None]]:
        from specviz.decoding.record import collect

        rounds: list[Round] = []
        batches: Batches[Round] = runner.batches(order)
        for batch in filter(None, batches):
            rounds += batch
            tokens = sum(len(round_.emitted) for round_ in rounds)
            doing = "race.running_speculative" if order.settings.drafter else "race.running_plain"
            report(SAY(doing), tokens / order.settings.max_new_tokens)
            yield batch, None
        yield [], collect(request, rounds)

    return work()


# --- the tabs ---------------------------------------------------------------------------------------------------------


def _race(runner: Runner, values: Values, report: Report) -> Answers:
    pair, order = _order_of(runner, values)
    request = race_request(pair, order, runner)

    def work() -> Answers:
        for event in duel_events(runner, order, NEVER):
            if isinstance(event, Duel):
                yield answers.race_answer(*event.runs(request), event.outcome(request), event.machine)
            else:
                report(*progress(event))

    return work()


def _compare(runner: Runner, values: Values, report: Report) -> Answers:
    pair, order = _order_of(runner, values)
    drafters = [name for name in available(pair) if name != PLAIN] if values["drafters"] is None else values["drafters"]
    options = ContestOptions(
        _list_of("drafters", drafters, lambda value: isinstance(value, str) and value != PLAIN),
        _list_of("gammas", values["gammas"], SETTINGS["num_draft_tokens"].allows),
        _list_of("widths", values["widths"], _is_width),
        _list_of("rules", values["rules"], lambda value: isinstance(value, str) and value != "auto"),
        values["repeats"],
        vary=values["vary"],
    )
    comparison = comparison_of(runner, pair, order, options)

    def answer(finished: bool) -> dict[str, Any]:
        texts, rows = texts_of(comparison, pair) if finished else None, rows_of(comparison, SAY, finished)
        return answers.comparison_answer(rows, options.repeats, machine_of(pair), texts, finished)

    def work() -> Answers:
        reported = 0
        for text, fraction in comparison.progress():
            report(text, fraction)
            if (runs := len(comparison.contest.runs)) > reported:
                reported = runs
                yield answer(False)
        yield answer(True)

    return work()


def _is_width(value: Any) -> bool:
    return is_whole(value) and (value == OWN or SETTINGS["branches"].allows(value))


def _list_of(name: str, values: Any, fits: Callable[[Any], bool]) -> list[Any]:
    """The values of a list, each once. Raises SpecvizError with the parameter's name."""
    if not isinstance(values, list):
        raise SpecvizError("Enter a list, not {value}.", name, value=quoted(values))
    for value in values:
        if not fits(value):
            raise SpecvizError("{value} is not a valid entry here.", name, value=quoted(value))
    return list(dict.fromkeys(values))


def _lossless(runner: Runner, values: Values, report: Report) -> Answers:
    trial = Trial(values["rule"], values["runs"], values["support"])
    pair, order = _order_of(runner, values, rule="auto")
    request = trial_request(pair, order, trial, runner.deployment)
    test = test_of(request, trial)

    def work() -> Answers:
        results = results_of(runner, order, request, trial, NEVER)
        if request.settings.sampling.greedy:
            yield answers.greedy_answer(test, [token for batch in results for token in batch])
            return
        for counted, over in counts_of(results, test.runs):
            report(SAY("lossless.counting"), counted.evidence.n / test.runs)
            yield answers.trial_answer(test, counted, over)

    return work()


def _passes(runner: Runner, values: Values, report: Report) -> Answers:
    pair = runner.store.get(PairName())

    def work() -> Answers:
        from specviz.bench.pass_times import measure_passes

        for batch in filter(None, runner.batches(PairName(), measure_passes)):
            report(SAY("why.in_line"), batch[-1].fraction)
            yield answers.passes_answer(batch[-1], machine_of(pair))

    return work()


#: All endpoints, by the names that requests use.
ENDPOINTS: dict[str, Endpoint] = {
    "generate": Endpoint(
        "Continues a prompt by speculative decoding and returns the trace of the run, schema specviz.run/1.",
        RUN,
        _generate,
    ),
    "rounds": Endpoint(
        "Continues a prompt like generate, live: each message holds the new rounds, and the last one the whole trace.",
        RUN,
        _rounds,
        grows=True,
    ),
    "race": Endpoint(
        "Decodes a prompt plainly and speculatively, taking turns, and returns the measured speedup and both runs "
        "against the same clock.",
        RUN,
        _race,
        "race",
    ),
    "compare": Endpoint(
        "Measures several ways to decode a prompt, taking turns with plain decoding, and returns figures for each.",
        {name: RUN[name] for name in _COMPARED}
        | {
            "drafters": Parameter(list[str] | None, "the drafters to compare; by default all that the pair has"),
            "gammas": Parameter(list[int | str], "the numbers of draft tokens, or auto", [AUTO, 4]),
            "widths": Parameter(list[int], f"the numbers of branches; {OWN} is the drafter's default", [OWN]),
            "rules": Parameter(list[str], f"besides the usual one: {', '.join(UNUSUAL)}", []),
            "vary": Parameter(
                str, f"values of {', '.join(OTHERS)}, such as confidence=0,0.3; several with ; between", ""
            ),
            "repeats": Parameter(int, f"how often everything is measured, 1 to {MOST_REPEATS}", 2),
        },
        _compare,
        "compare",
        grows=True,
    ),
    "lossless": Endpoint(
        "Tests whether the tokens that a rule emits follow the target's distribution: counts of many short runs, the "
        "exact probabilities, and the verdict.",
        {name: parameter for name, parameter in RUN.items() if name not in ("rule", "coins")}
        | {
            "rule": Parameter(str, f"the rule to test: {', '.join(LAB_RULES)}", "auto"),
            "runs": Parameter(int, f"1 to {MOST_RUNS}", 3000),
            "support": Parameter(int, f"the test's own top-k, 1 to {MOST_SUPPORT}", 8),
        },
        _lossless,
        "lossless",
        grows=True,
    ),
    "passes": Endpoint(
        "Measures the cost of a pass over K tokens on this machine: T(K) and T(K)/T(1) of target and draft model.",
        {},
        _passes,
        "why",
        grows=True,
    ),
}
