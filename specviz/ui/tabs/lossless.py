"""The Lossless tab: does the emitted text follow the target's distribution? The test, and rules that must fail it."""

from __future__ import annotations

import math
import pathlib
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import gradio as gr

from specviz.grading.child import FUNCTIONS
from specviz.grading.questions import counted_law
from specviz.records.errors import SpecvizError, quoted
from specviz.records.rules import LAB_RULES, LIKELIEST, RULES
from specviz.records.words import Words, joined, said
from specviz.theory.statistics import Evidence, noise, steps
from specviz.ui.applying import warn
from specviz.ui.components import QUEUED, element_view
from specviz.ui.controls import Fields
from specviz.ui.deployment import Deployment
from specviz.ui.desk import Desk, Tab
from specviz.ui.line import Visit
from specviz.ui.orders import Order, whole_up_to
from specviz.ui.runner import Runner, closing
from specviz.views import lossless_messages as messages
from specviz.views.grades import of_json
from specviz.views.labels import label, passes_words
from specviz.views.run_messages import message, text_messages

if TYPE_CHECKING:
    from specviz.decoding.exact_distribution import ExactDistribution
    from specviz.decoding.lossless import GreedyToken, Sample
    from specviz.decoding.request import Request
    from specviz.models.pair import ModelPair

MOST_RUNS = 20_000
MOST_SUPPORT = 16

#: At temperature 0 two texts of at most this many tokens are compared.
MOST_GREEDY = 128

#: Seconds between two pictures of the counts_of counts.
REPORT_EVERY = 0.25

#: Seconds of counting after which its pace is known.
SETTLED = 1.0

#: In so many steps, and seconds, the runs of a graded function are counted.
GRADED_STEPS, GRADED_SECONDS = 20, 2.0

#: At how many points the noise is computed.
NOISE_STEPS = 14


@dataclass(frozen=True, slots=True)
class Trial:
    """A test, as the tab's fields ask for it."""

    rule: str  # a name from `LAB_RULES`
    runs: float
    support: float  # the test's own top-k, 1 to `MOST_SUPPORT`


def create_lossless_tab(desk: Desk) -> Tab:
    """Lays out the rule to be tested, how often, the button, and the view of the result."""
    runner, say = desk.runner, desk.say
    fields: Fields = {}
    with gr.Group(elem_classes=["sv-choice"]):
        fields["rule"] = gr.Radio(
            [(_label(name, say), name) for name in LAB_RULES],
            value="auto",
            label=say("lossless.rule"),
            elem_classes=["sv-lab-rules"],
        )
        with gr.Row():
            fields["runs"] = gr.Slider(500, MOST_RUNS, value=3000, step=500, label=say("lossless.runs"), min_width=240)
            options = {"label": say("lossless.support"), "info": say("lossless.support_info"), "min_width": 240}
            fields["support"] = gr.Slider(2, MOST_SUPPORT, value=8, step=1, **options)
    with gr.Row(elem_classes=["sv-actions"]), gr.Row(elem_classes=["sv-either"]):
        go = gr.Button(say("lossless.go"), variant="primary", elem_id="start-lossless")
        stop = gr.Button(say("lossless.stop"), variant="stop", visible=False, elem_id="stop-lossless")
    view = element_view("lossless", say, submits="specviz-lab")
    with gr.Row(elem_classes=["sv-traces"]):
        upload = gr.UploadButton(say("lossless.open_graded"), file_types=[".json"], size="sm", elem_id="open-graded")

    def on_upload(path: str) -> Iterator[str]:
        try:
            yield from count_graded(pathlib.Path(path))
        except SpecvizError as error:
            yield text_messages("error")(say.error(error))

    upload.upload(on_upload, upload, view, trigger_mode="always_last", **QUEUED)

    def on_linked(wanted: gr.EventData) -> Any:
        if wanted.rule in LAB_RULES:
            return wanted.rule
        warn(desk.controls, _no_rule(str(wanted.rule)))
        return gr.skip()

    def check_trial(pair: ModelPair, order: Order, **values: Any) -> None:
        trial_request(pair, order, Trial(**values), runner.deployment)

    def stream(visit: Visit, order: Order, **values: Any) -> Iterator[str]:
        return try_rule(runner, order, Trial(**values), visit.halt)

    view.submit(on_linked, None, fields["rule"], **QUEUED)
    shown = text_messages("phase"), text_messages("error")
    return Tab([desk.action(go, view, stream, *shown, check_trial, fields)], stop)


def _label(rule: str, say: Words) -> str:
    """A rule of the lab with a sign that says whether it is lossless."""
    if rule in RULES:
        return f"{'✓' if RULES[rule].lossless else '✗'} {say(f'ways.rule_{rule}')}"
    return say(f"lossless.rule_{rule}", k=LIKELIEST)


def _no_rule(name: str) -> SpecvizError:
    return SpecvizError("There is no rule {name} to test.", "rule", name=quoted(name))


def trial_order(order: Order, trial: Trial) -> Order:
    """The order of one run of the test: two tokens, of so few candidates that all pairs can be counted.

    Raises SpecvizError for a trial that the page does not offer.
    """
    from specviz.decoding import lossless
    from specviz.decoding.exact_distribution import RUN_TOKENS

    if trial.rule not in LAB_RULES:
        raise _no_rule(trial.rule)
    whole_up_to(MOST_RUNS, "runs", trial.runs)
    whole_up_to(MOST_SUPPORT, "support", trial.support)
    rule, sampling = lossless.LAB_RULES[trial.rule].engine_rule, order.settings.sampling
    if sampling.greedy:
        return order.but(rule=rule, coins="", max_new_tokens=min(order.settings.max_new_tokens, MOST_GREEDY))
    support = int(trial.support)
    return order.but(rule=rule, coins="", max_new_tokens=RUN_TOKENS, top_k=min(sampling.top_k or support, support))


def trial_request(pair: ModelPair, order: Order, trial: Trial, deployment: Deployment) -> Request:
    """The checked request of `trial_order`. Raises SpecvizError whose field is a control's or one of `Trial`."""
    from specviz.decoding.lossless import LAB_RULES, check_lossless

    # First without the trial: an error in the controls must name a control.
    order.but(rule="auto").request(pair, deployment)
    request = trial_order(order, trial).request(pair, deployment)
    check_lossless(request, LAB_RULES[trial.rule])
    return request


def try_rule(runner: Runner, order: Order, trial: Trial, halt: threading.Event) -> Iterator[str]:
    """Messages for the view: the exact distribution, the counts as they grow, and the verdict.

    Raises SpecvizError for a test that could not run, or not to its end.
    """
    yield message("phase", text=said("lossless.preparing"), fraction=0.0)
    request = trial_request(runner.store.get(order.pair), order, trial, runner.deployment)
    test, results = test_of(request, trial), results_of(runner, order, request, trial, halt)
    if request.settings.sampling.greedy:
        tokens: list[GreedyToken] = []
        for batch in _in_larger_batches(results):
            tokens += batch
            yield messages.greedy_message(test, tokens, "running")
        yield messages.greedy_message(test, tokens, "stopped" if halt.is_set() else "finished")
        return
    yield message("phase", text=said("lossless.enumerating"), fraction=0.0)
    yield from _trial_messages(test, results)


def _trial_messages(test: messages.TrialInfo, results: Iterator[list[Any]]) -> Iterator[str]:
    for counted, over in counts_of(results, test.runs):
        phase = "running" if not over else "finished" if counted.evidence.n == test.runs else "stopped"
        yield messages.trial_message(test, counted, counted.test(), phase)


def count_graded(report: pathlib.Path) -> Iterator[str]:
    """Messages for the view: the runs of each function of a report of `grade --json`, the wrong ones last.

    The runs were made where the report was: nothing that a student wrote is run here. Raises SpecvizError for a file
    that has none.
    """
    found = [(grade.file, verdict) for grade in of_json(report) for verdict in grade.verdicts if verdict.runs]
    if not found:
        raise SpecvizError("This report has no runs to count: write one for a single file, with grade FILE --json OUT.")
    for file, verdict in sorted(found[: len(FUNCTIONS)], key=lambda one: one[1].sentence != ""):
        runs = verdict.runs.split(" ")[:MOST_RUNS]
        test = messages.TrialInfo(
            key=uuid.uuid4().hex,
            rule=messages.GRADED,
            drafter=f"{verdict.function} · {file}",
            settings=said("lossless.graded_settings"),
            lossless=not verdict.sentence,
            half_precision=False,
            dtype="float64",
            runs=len(runs),
            deepest_draft=2,
            told=" ".join([verdict.sentence, *verdict.counterexample]),
        )
        yield from _trial_messages(test, _graded_results(runs))


def _graded_results(runs: Sequence[str]) -> Iterator[list[ExactDistribution | Sample]]:
    """As `examine` would give them, slowly enough to watch."""
    from specviz.decoding.exact_distribution import ExactDistribution
    from specviz.decoding.lossless import Sample

    law = dict(sorted(counted_law().items(), key=lambda one: -one[1]))
    probs, named = tuple(law.values()), {".".join(map(str, ids)): ids for ids in law}
    yield [ExactDistribution(tuple(law), tuple(tuple(map(str, ids)) for ids in law), probs, probs, probs, 0.0)]
    step = math.ceil(len(runs) / GRADED_STEPS)
    for start in range(0, len(runs), step):
        time.sleep(GRADED_SECONDS / GRADED_STEPS)
        yield [Sample(named.get(run, ()), ()) for run in runs[start : start + step]]


def results_of(
    runner: Runner, order: Order, request: Request, trial: Trial, halt: threading.Event
) -> Iterator[list[Any]]:
    """The results of `examine_by_name`, in batches, until `halt` is set. request: of `trial_request`."""
    from specviz.decoding.exact_distribution import COMPARED

    # All runs as one, for an estimate of their time: where they are sampled, few tokens are looked at.
    tokens = request.settings.max_new_tokens if request.settings.sampling.greedy else COMPARED * int(trial.runs)
    runs = [replace(request.settings, max_new_tokens=tokens)]
    arguments = trial_order(order, trial), examine_by_name, trial.rule, int(trial.runs)
    return closing(runner.batches(*arguments, extra_runs=runs), halt)


def examine_by_name(request: Request, rule: str, runs: int) -> Iterator[ExactDistribution | Sample | GreedyToken]:
    """`examine` with the rule by its name, which crosses a process border; and the first greedy token that differs from
    plain decoding's is judged."""
    from specviz.bench.two_texts import parting
    from specviz.decoding.lossless import LAB_RULES, GreedyToken, examine

    start = request.prompt.ids
    plain, drafted = [*start], [*start]
    for item in examine(request, LAB_RULES[rule], runs):
        if isinstance(item, GreedyToken):
            (plain if item.plain else drafted).append(item.id)
            shared = plain[: len(drafted)]
            if not item.plain and shared[:-1] == drafted[:-1] and shared != drafted:
                parted = parting(request.pair, shared, drafted, len(start), 0, request.grammar)
                item = replace(item, gap=parted.sides[1].gap if parted else None)
        yield item


def test_of(request: Request, trial: Trial) -> messages.TrialInfo:
    """The test, in words."""
    from specviz.decoding.lossless import LAB_RULES
    from specviz.models.placement import dtype_name
    from specviz.passes.fast_passes import kind_of

    settings, sampling = request.settings, request.settings.sampling
    parts = [
        said("lossless.gamma", n=request.num_draft_tokens),
        said("lossless.temperature", t=sampling.temperature),
    ]
    if not sampling.greedy:
        parts.append(said("lossless.top_k", k=sampling.top_k))
        parts += [said("lossless.top_p", p=sampling.top_p)] if sampling.top_p < 1 else []
        parts += [said("lossless.min_p", p=sampling.min_p)] if sampling.min_p > 0 else []
    dtype = dtype_name(request.pair.dtype)
    parts += [said("lossless.seed", seed=settings.seed), passes_words(kind_of(request.passes))]
    return messages.TrialInfo(
        key=uuid.uuid4().hex,
        rule=trial.rule,
        drafter=label(settings.drafter),
        settings=joined(parts),
        lossless=LAB_RULES[trial.rule].lossless,
        half_precision=dtype != "float32",
        dtype=dtype,
        runs=settings.max_new_tokens if sampling.greedy else int(trial.runs),
        deepest_draft=min(request.num_draft_tokens, settings.max_new_tokens - 1),
    )


def counts_of(results: Iterator[list[Any]], runs: int) -> Iterator[tuple[messages.TrialCounts, bool]]:
    """The counts from time to time and, marked True, at the end: all `runs` made, or the test stopped."""
    from specviz.decoding.exact_distribution import ExactDistribution

    counted: messages.TrialCounts | None = None
    began = 0.0
    for batch in _in_larger_batches(results):
        for item in batch:
            if isinstance(item, ExactDistribution):
                began = time.monotonic()
                evidence = Evidence(item.outcomes, item.probs, item.low, item.high, runs)
                counted = messages.TrialCounts(item, evidence, noise(item.probs, steps(runs, NOISE_STEPS)))
            elif counted is not None:
                counted.add(item)
        assert counted is not None, "the exact distribution comes first"
        if (n := counted.evidence.n) and (spent := time.monotonic() - began) > SETTLED:
            counted.seconds_left = spent / n * (runs - n)
        yield counted, False
    if counted is not None:
        if counted.evidence.n:
            [counted.now] = noise(counted.exact.probs, [counted.evidence.n])
        yield counted, True


def _in_larger_batches(batches: Iterator[list[Any]]) -> Iterator[list[Any]]:
    """All that is in the batches, in larger ones, `REPORT_EVERY` seconds apart."""
    waiting, reported = [], -math.inf
    for batch in batches:
        waiting += batch
        if time.monotonic() - reported > REPORT_EVERY:
            reported = time.monotonic()
            yield waiting
            waiting = []
    if waiting:
        yield waiting
