"""The Compare tab: several ways to draft and to verify, each in turn with plain decoding, on one or more prompts."""

from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import gradio as gr

from specviz.bench.contestants import OTHERS
from specviz.records.errors import SpecvizError
from specviz.records.prompts import read_prompts, text_of
from specviz.records.rules import RULES, UNUSUAL
from specviz.records.settings import AUTO, PLAIN
from specviz.records.words import Said, Words, joined, said, words
from specviz.servers.connection import KEY
from specviz.ui.advice import answer, competing
from specviz.ui.components import QUEUED, UNQUEUED, as_text, element_view, fold_switch, leads_to_server
from specviz.ui.contest import (
    MOST_REPEATS,
    OWN,
    Comparison,
    ContestOptions,
    comparison_of,
    rows_of,
    run_of,
    texts_of,
    time_of,
)
from specviz.ui.controls import Fields, choices
from specviz.ui.desk import Desk, Tab
from specviz.ui.device import PairName
from specviz.ui.downloads import result_page
from specviz.ui.line import Visit
from specviz.ui.orders import Order
from specviz.ui.runner import Runner, closing
from specviz.ui.ways import WAYS, available, refusal
from specviz.views import tab_messages as messages
from specviz.views.labels import passes_words
from specviz.views.pages import comparison_page
from specviz.views.run_messages import message, text_messages
from specviz.views.terminal import work_table

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair

GAMMAS = (1, 2, 3, 4, 6, 8)


def create_compare_tab(desk: Desk) -> Tab:
    """Lays out the choices, the buttons and the view of the results."""
    runner, say = desk.runner, desk.say
    fields: Fields = {}
    with gr.Row(elem_classes=["sv-actions"]):
        with gr.Row(elem_classes=["sv-either"]):
            ask = gr.Button(say("advice.go"), variant="primary", elem_id="start-verdict")
            stop = gr.Button(say("page.stop"), variant="stop", visible=False, elem_id="stop-compare")
        go = gr.Button(say("compare.go"), elem_id="start-compare")
        two_rules = gr.Button(say("compare.two_rules"), elem_id="start-replay")
        server = gr.Button(say("advice.server_link"), variant="link", size="sm", elem_classes=["sv-to-server"])
    fold_switch(say("compare.choices"), "compare-choices", by_run=True)
    with gr.Column(elem_id="compare-choices", elem_classes=["sv-more"]):
        _create_choices(fields, desk)
        fields["prompts"] = _create_prompts(say)
    note = gr.Markdown(elem_classes=["sv-note"], elem_id="compare-time")
    view = element_view("compare", say)
    button, offer = desk.result_button("comparison")
    server.click(None, js=leads_to_server())

    def chosen(pair: ModelPair, values: dict[str, Any]) -> ContestOptions:
        # The fields may be older than the pair, and hold drafters that `offered` takes away.
        possible = [name for name in values["drafters"] if refusal(pair, name) is None]
        return ContestOptions(**values | {"drafters": possible or values["drafters"]})

    def check(pair: ModelPair, order: Order, **values: Any) -> Comparison:
        return comparison_of(runner, pair, order, chosen(pair, values))

    def stream(visit: Visit, order: Order, **values: Any) -> Iterator[str]:
        options = chosen(runner.store.get(order.pair), values)
        if page := (yield from compare(runner, order, options, visit.halt, say.language)):
            desk.visitors.results[visit.session, "comparison"] = result_page("comparison", page)

    def stream_verdict(visit: Visit, order: Order, prompts: str) -> Iterator[str]:
        return answer(runner, visit, order, prompts, desk.visitors.undecided, say)

    def check_replay(pair: ModelPair, order: Order) -> None:
        replay_order(order).request(pair, runner.deployment)

    def stream_replay(visit: Visit, order: Order) -> Iterator[str]:
        return compare_rules(runner, order, visit.halt)

    def offered(pair: ModelPair) -> Any:
        names = [name for name in available(pair) if name != PLAIN]
        return gr.update(choices=choices(names, say), value=names)

    def waiting_verdict(text: Said) -> str:
        return message("verdict", phase="running", text=text, fraction=0.0)

    def waiting_replay(text: Said) -> str:
        return messages.replay_message(messages.Replayed(), phase="running", text=text, fraction=0.0)

    desk.pair_updates.append((fields["drafters"], offered))
    asked = _wire_time(desk, fields, note, check)
    shown = text_messages("contest_phase"), text_messages("contest_error")
    comparison = desk.action(go, view, stream, *shown, check, fields, offered=[button], offer=offer)
    shown_replay = waiting_replay, text_messages("replay_error")
    told, own = (waiting_verdict, text_messages("verdict_error")), {"prompts": fields["prompts"]}
    verdict = desk.action(ask, view, stream_verdict, *told, partial(competing, runner), own)
    return Tab(
        [verdict, comparison, desk.action(two_rules, view, stream_replay, *shown_replay, check_replay)],
        stop,
        asked=asked,
    )


def _wire_time(desk: Desk, fields: Fields, note: gr.Markdown, check: Callable[..., Comparison]) -> Any:
    """Has `note` say how long the comparison would take, when its choices change; for `Tab.asked`. check: makes it."""
    runner, controls, say = desk.runner, desk.controls, desk.say

    def on_change(*values: Any) -> str:
        try:
            name = PairName(**values[len(controls.fields)])
            if (pair := runner.store.loaded(name)) is None:
                return ""
            chosen = dict(zip(fields, values[len(controls.inputs) :]))
            return say.translated(time_of(check(pair, controls.order(values, name, pair), **chosen), pair))
        except SpecvizError as error:
            # Of anything else the press says what is wrong: it may be half typed.
            return as_text(say.error(error)) if error.field == "drafters" else ""

    inputs = [*controls.inputs, *fields.values()]
    # By the visitor's hand: what a pair changes, it changes while the page loads, when nobody has asked yet.
    texts = ("prompts", "server", "vary")  # whose `input` is not told of what is pasted
    events = [fields[name].change if name in texts else fields[name].input for name in fields]
    # As the controls stand: Gradio would answer a value that does not fit, or does not any more, with an error.
    how = {"trigger_mode": "always_last", "preprocess": False, **UNQUEUED}
    gr.on(events, on_change, inputs, note, **how)
    return on_change, inputs, note


def _create_choices(fields: Fields, desk: Desk) -> None:
    """What is compared."""
    say = desk.say
    drafters = [name for name in WAYS if name != PLAIN]
    lengths = [AUTO, *(gamma for gamma in GAMMAS if gamma <= desk.runner.deployment.max_draft_tokens)]
    with gr.Group(elem_classes=["sv-choice"]):
        fields["drafters"] = gr.CheckboxGroup(choices(drafters, say), value=drafters, label=say("compare.drafters"))
        fields["gammas"] = gr.CheckboxGroup(
            lengths, value=[length for length in (AUTO, 4) if length in lengths], label=say("compare.gammas")
        )
        fields["widths"] = gr.CheckboxGroup(
            [(say("compare.own"), OWN), (say("compare.one_is_chain"), 1), ("2", 2), ("4", 4)],
            value=[OWN],
            label=say("compare.widths"),
        )
        fields["rules"] = gr.CheckboxGroup(
            [(_rule_label(name, say), name) for name in UNUSUAL],
            value=[],
            label=say("compare.rules"),
        )
        fields["vary"] = gr.Textbox(
            "", label=say("compare.vary"), info=say("compare.vary_info", names=", ".join(OTHERS)), elem_id="vary"
        )
        fields["server"] = gr.Textbox(
            "",
            label=say("compare.server"),
            info=say("compare.server_info", variable=KEY),
            visible=desk.runner.deployment.servers != (),
            elem_id="compared-servers",
        )
        fields["repeats"] = gr.Slider(1, MOST_REPEATS, value=2, step=1, label=say("compare.repeats"))


def _rule_label(rule: str, say: Words) -> str:
    """The rule's title, and what it can judge if that is not all."""
    name, facts = say(f"ways.rule_{rule}"), RULES[rule]
    if facts.paths:
        return say("compare.for_trees", rule=name)
    return name if facts.trees else say("compare.for_chains", rule=name)


def _create_prompts(say: Words) -> gr.Textbox:
    """The visitor's prompts, typed or from a file; their number, and a button that removes them."""
    # Until its tab is opened, the field has the value that it is made with.
    box = gr.Textbox(
        "",
        label=say("compare.prompts"),
        info=say("compare.prompts_kinds"),
        lines=1,
        max_lines=6,
        elem_id="prompts",
    )
    with gr.Row(elem_classes=["sv-prompts"]):
        upload = gr.UploadButton(say("compare.open_prompts"), file_types=[".txt", ".jsonl", ".json"], size="sm")
        remove = gr.Button(say("compare.remove_prompts"), size="sm", visible=False, elem_id="remove-prompts")
        note = gr.Markdown(visible=False, elem_id="prompts-note")

    def on_change(text: str) -> list[Any]:
        counted = _counted(text, say) if text else ""
        return [gr.update(visible=bool(text)), gr.update(value=as_text(counted), visible=bool(text))]

    def on_upload(path: str) -> list[Any]:
        try:
            return [text_of(pathlib.Path(path)), gr.skip()]
        except SpecvizError as error:
            return [gr.skip(), gr.update(value=as_text(say.error(error)), visible=True)]

    box.change(on_change, box, [remove, note], **UNQUEUED)
    upload.upload(on_upload, upload, [box, note], trigger_mode="always_last", **QUEUED)
    remove.click(lambda: "", None, box, **UNQUEUED)
    return box


def _counted(text: str, say: Words) -> str:
    try:
        prompts = read_prompts(text)
    except SpecvizError as error:
        return say.error(error)
    return say(
        "compare.prompts_told",
        prompts=say("compare.prompts_count", n=len(prompts)),
        domains=say("compare.domains_count", n=len({prompt.domain for prompt in prompts})),
    )


def compare(
    runner: Runner, order: Order, options: ContestOptions, halt: threading.Event, language: str
) -> Generator[str, None, str | None]:
    """Messages for the table: progress, and the figures after every run. Returns the table as a page in a
    file, if there is something in it. Raises SpecvizError if the comparison cannot run, or not to the end."""
    yield message("contest_phase", text=said("common.preparing"), fraction=0.0)
    pair, say = runner.store.get(order.pair), words(language)
    comparison = comparison_of(runner, pair, order, options, halt, look=True)
    yield _table(comparison, say, "running", said("common.warming_up"), 0.0)
    finished = 0
    for text, fraction in comparison.progress():
        new, finished = len(comparison.contest.runs) > finished, len(comparison.contest.runs)
        phase = message("contest_phase", text=text, fraction=fraction)
        yield _table(comparison, say, "running", text, fraction) if new else phase
    phase, text = ("stopped", said("compare.stopped")) if halt.is_set() else ("finished", _summary(comparison, pair))
    yield (outcome := _table(comparison, say, phase, text, 1.0, texts_of(comparison, pair)))
    if (first := run_of(comparison, pair, 0)) is None:
        return None
    return comparison_page(first, outcome, machine_of(pair), language)


def machine_of(pair: ModelPair) -> str | None:
    """The name of the machine that measures; a lent GPU is known only to the call that it is lent to."""
    from specviz.bench.machine import name_of

    return None if pair.lent else name_of(pair.device)


def _table(
    comparison: Comparison, say: Words, phase: str, text: Said, fraction: float, texts: dict[str, Any] | None = None
) -> str:
    over = phase != "running"
    return messages.contest_message(
        rows_of(comparison, say, over),
        phase=phase,
        text=text,
        fraction=fraction,
        repeats=comparison.contest.repeats * len(comparison.orders),
        rules_alike=bool(comparison.left_out),
        texts=texts,
        domains=work_table(comparison.contest.by_domain()) if over and comparison.on_file else (),
    )


def _summary(comparison: Comparison, pair: ModelPair) -> Said:
    from specviz.passes.fast_passes import kind_of

    contest, first = comparison.contest, comparison.plain.seed
    request = comparison.orders[0].request(pair, comparison.runner.deployment)
    values = {
        "passes": passes_words(kind_of(request.passes)),
        "runs": contest.count,
        "tokens": comparison.plain.max_new_tokens,
        "first": first,
    }
    if contest.repeats == 1:
        text = said("compare.summary", **values)
    else:
        text = said("compare.summary_of_repeats", **values, last=first + contest.repeats - 1)
    if comparison.on_file:
        text = joined([said("compare.prompts_count", n=len(comparison.orders)), text], ": ")
    return joined([text, said("common.busy")], " ") if contest.busy else text


def replay_order(order: Order) -> Order:
    """The order whose chains of the draft model both rules judge. Raises SpecvizError where no coin is flipped."""
    if order.settings.sampling.greedy:
        raise SpecvizError(
            "At temperature 0 no coin is flipped, so the two rules cannot differ: choose a temperature above 0.",
            "temperature",
        )
    return order.but(drafter="draft_model", branches=1, exit_layer=None, bits=None, rule="token", coins="")


def compare_rules(runner: Runner, order: Order, halt: threading.Event) -> Iterator[str]:
    """Messages for the two rules: totals as they grow, and at the end the rounds in which the rules differ."""
    from specviz.bench.turns import REPORT_EVERY
    from specviz.decoding.engine import replay

    counts, tokens, reported = messages.Replayed(), 0, 0.0
    yield messages.replay_message(counts, phase="running", text=said("common.preparing"), fraction=0.0)
    order = replay_order(order)
    for batch in closing(runner.batches(order, replay, "block"), halt):
        for token, block in batch:
            counts.add(token, block)
            tokens += len(token.emitted)
        if time.monotonic() - reported > REPORT_EVERY:
            reported = time.monotonic()
            fraction = tokens / order.settings.max_new_tokens
            yield messages.replay_message(
                counts, phase="running", text=said("compare.judging_twice"), fraction=fraction
            )
    phase = "stopped" if halt.is_set() else "finished"
    text = said(
        f"compare.replay_{phase}",
        gamma=order.settings.num_draft_tokens,
        temperature=order.settings.sampling.temperature,
        seed=order.settings.seed,
    )
    yield messages.replay_message(counts, phase=phase, text=text, fraction=1.0)
