"""The Lossless tab: does the emitted text follow the target's law? The test, and rules that must fail it."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.decoding import engine
from specviz.decoding.lossless import LAB_RULES, LIKELIEST, GreedyToken, Law, Sample
from specviz.models.pair import ModelPair
from specviz.passes.static_passes import kind_of
from specviz.records.errors import SpecvizError
from specviz.records.words import Words
from specviz.theory.statistics import Evidence, noise, steps
from specviz.ui.components import lossless_view, verdicts
from specviz.ui.orders import Order
from specviz.ui.runner import Runner, closing
from specviz.ui.trials import MOST_RUNS, MOST_SUPPORT, Trial, trial_request
from specviz.ui.ways import label
from specviz.views import lossless_messages as messages
from specviz.views.run_messages import passes_words

#: Seconds between two pictures of the growing counts.
REPORT_EVERY = 0.25

#: At how many numbers of runs the noise is worked out.
NOISE_STEPS = 14


@dataclass(frozen=True)
class LosslessTab:
    """The tab's components, by what they do. fields: by the name of the `Trial` field they fill."""

    fields: dict[str, gr.components.Component]
    go: gr.Button
    stop: gr.Button
    view: gr.HTML
    say: Words

    def validations(self, error: SpecvizError | None) -> list[dict[str, Any]]:
        """One verdict a field, in their order."""
        return verdicts(self.fields, error, self.say)


def create_lossless_tab(say: Words) -> LosslessTab:
    """Lays out the rule to be tested, how often, the button, and the view of what came out."""
    fields: dict[str, gr.components.Component] = {}
    with gr.Group(elem_classes=["sv-choice"]):
        fields["rule"] = gr.Radio(
            [(say(f"lossless.rule_{name}", k=LIKELIEST), name) for name in LAB_RULES],
            value="auto",
            label=say("lossless.rule"),
            elem_classes=["sv-lab-rules"],
        )
        with gr.Row():
            fields["runs"] = gr.Slider(500, MOST_RUNS, value=3000, step=500, label=say("lossless.runs"), min_width=240)
            fields["support"] = gr.Slider(
                2,
                MOST_SUPPORT,
                value=8,
                step=1,
                label=say("lossless.support"),
                info=say("lossless.support_info"),
                min_width=240,
            )
    with gr.Row(elem_classes=["sv-actions"]):
        go = gr.Button(say("lossless.go"), variant="primary", elem_id="start-lossless")
        stop = gr.Button(say("lossless.stop"), variant="stop", visible=False, elem_id="stop-lossless")
    return LosslessTab(fields, go, stop, lossless_view(say), say)


def trial_mistake(runner: Runner, order: Order, trial: Trial) -> SpecvizError | None:
    """What is wrong with an order to test; what only a loaded pair can tell is checked when it is loaded."""
    pair = runner.store.loaded(order.pair)
    if pair is None:
        return None
    try:
        trial_request(pair, order, trial, runner.settings)
    except SpecvizError as error:
        return error
    return None


def try_rule(runner: Runner, order: Order, trial: Trial, say: Words, halt: threading.Event) -> Iterator[str]:
    """Messages for the view: the law, the counts as they grow, and the verdict on as many as there are."""
    yield messages.phase_message(say("lossless.preparing"))
    try:
        pair = runner.store.get(order.pair)
        request = trial_request(pair, order, trial, runner.settings)
        asked = _asked(request, pair, trial, say)
        show = _greedy if request.sampling.greedy else _counts
        yield from show(runner, order, trial, asked, say, halt)
    except SpecvizError as error:
        yield messages.error_message(say.error(error))


def _asked(request: engine.Request, pair: ModelPair, trial: Trial, say: Words) -> messages.Asked:
    sampling = request.sampling
    parts = [
        say("lossless.gamma", n=request.num_draft_tokens),
        say("lossless.temperature", t=f"{sampling.temperature:g}"),
    ]
    if not sampling.greedy:
        parts.append(say("lossless.top_k", k=sampling.top_k))
        parts += [say("lossless.top_p", p=f"{sampling.top_p:g}")] if sampling.top_p < 1 else []
        parts += [say("lossless.min_p", p=f"{sampling.min_p:g}")] if sampling.min_p > 0 else []
    dtype = pair.info().dtype
    passes = passes_words(kind_of(request.passes), say)
    return messages.Asked(
        trial=uuid.uuid4().hex,
        rule=trial.rule,
        drafter=label(request.drafter, say),
        settings=" · ".join([*parts, say("lossless.seed", seed=request.seed), passes]),
        lossless=LAB_RULES[trial.rule].lossless,
        half_precision=dtype != "float32",
        dtype=dtype,
        runs=request.max_new_tokens if sampling.greedy else int(trial.runs),
        drafted=min(request.num_draft_tokens, request.max_new_tokens - 1),
    )


def _counts(
    runner: Runner, order: Order, trial: Trial, asked: messages.Asked, say: Words, halt: threading.Event
) -> Iterator[str]:
    """The test above temperature 0."""
    yield messages.phase_message(say("lossless.enumerating"))
    counted: messages.Counted | None = None
    told = -math.inf
    for batch in closing(runner.trials(order, trial), halt):
        for one in batch:
            if isinstance(one, Law):
                counted = _empty(one, asked.runs)
            else:
                _count(counted, one)
        if time.monotonic() - told > REPORT_EVERY:
            told = time.monotonic()
            yield _picture(asked, counted, "running", say)
    if counted is not None:
        if counted.evidence.n:
            [counted.now] = noise(counted.law.probs, [counted.evidence.n])
        yield _picture(asked, counted, "stopped" if counted.evidence.n < asked.runs else "finished", say)


def _empty(law: Law, runs: int) -> messages.Counted:
    evidence = Evidence(law.outcomes, law.probs, law.low, law.high, runs)
    return messages.Counted(law, evidence, noise(law.probs, steps(runs, NOISE_STEPS)))


def _count(counted: messages.Counted, sample: Sample) -> None:
    counted.evidence.add(sample.outcome)
    for counts, source in zip(counted.sources, sample.sources):
        counts[source] += 1


def _picture(asked: messages.Asked, counted: messages.Counted, phase: str, say: Words) -> str:
    test = counted.evidence.test() if counted.evidence.n else None
    return messages.trial_message(asked, counted, test, phase, say)


def _greedy(
    runner: Runner, order: Order, trial: Trial, asked: messages.Asked, say: Words, halt: threading.Event
) -> Iterator[str]:
    """The test at temperature 0: two texts, token by token."""
    tokens: list[GreedyToken] = []
    told = -math.inf
    for batch in closing(runner.trials(order, trial), halt):
        tokens += batch
        if time.monotonic() - told > REPORT_EVERY:
            told = time.monotonic()
            yield messages.greedy_message(asked, tokens, "running", say)
    yield messages.greedy_message(asked, tokens, "stopped" if halt.is_set() else "finished", say)
