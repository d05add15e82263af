"""The Models tab: the pair in use, a check of it, and other pairs."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import gradio as gr

from specviz.models.catalog import CATALOG, PUBLISHED, HubPair, is_downloaded, needed_bytes, size_bytes
from specviz.passes.roles import Role
from specviz.passes.zero_gpu import is_zero_gpu
from specviz.records.errors import SpecvizError, quoted
from specviz.records.words import Bytes, Sentence, Words, joined, said, with_units
from specviz.ui.components import INTERNAL, QUEUED, UNQUEUED, as_text, fold_switch
from specviz.ui.controls import Changes
from specviz.ui.desk import Action, Desk, Tab
from specviz.ui.device import PairName
from specviz.ui.line import Visit
from specviz.ui.runner import Runner
from specviz.ui.tabs.pair_in_use import check_pair, describe, notes, role_names
from specviz.views.labels import pair_line, passes_words

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair

#: Bytes of a download that a second press has to confirm.
LARGE = 2 * 10**9

DTYPES = ["auto", "bfloat16", "float16", "float32"]


@dataclass(frozen=True)
class Status:
    """Where the tab describes the pair in use."""

    table: gr.Markdown
    notes: gr.Markdown
    findings: gr.Markdown  # by the check


@dataclass(frozen=True)
class PairForm:
    """The form for a pair of the visitor's own: its fields, by the names of `PairName`, and below each a place for an
    error."""

    fields: dict[str, gr.components.Component] = field(default_factory=dict)
    problems: dict[str, gr.Markdown] = field(default_factory=dict)

    def show(self, error: SpecvizError | None, say: Words) -> Changes:
        """The sentence at its field, by default at the target, and nothing at the others."""
        at = error and (error.field if error.field in self.problems else "target")
        text = as_text(say.error(error)) if error else ""
        return {place: gr.update(value=text, visible=name == at) for name, place in self.problems.items()}


def create_models_tab(desk: Desk) -> Tab:
    """Lays out the tab and wires its buttons: the pair in use, a check of it, and other pairs."""
    say, allowed = desk.say, desk.runner.deployment.allow_loading
    gr.Markdown(say("models.in_use"))
    table = gr.Markdown(elem_classes=["sv-table", "sv-pair-status"])
    fold_switch(say("models.notes"), "pair-notes")
    with gr.Column(elem_id="pair-notes", elem_classes=["sv-more"]):
        about = gr.Markdown(elem_classes=["sv-note", "sv-notes"])
    checked, findings = _create_check(desk)
    status = Status(table, about, findings)
    loads = _create_others(desk, status) if allowed else []
    _wire_passes(desk, status, loads)
    return checked


def _create_check(desk: Desk) -> tuple[Tab, gr.Markdown]:
    """Lays out the check of the pair in use, with the place for its findings."""
    runner, say = desk.runner, desk.say
    with gr.Row(elem_classes=["sv-actions"]), gr.Row(elem_classes=["sv-either"]):
        go = gr.Button(say("models.check"), elem_id="check-pair")
        stop = gr.Button(say("page.stop"), variant="stop", visible=False, elem_id="stop-check")
    findings = gr.Markdown(say("models.check_about"), elem_classes=["sv-note", "sv-findings"])

    def stream(visit: Visit, name: PairName, page_pair: dict[str, Any]) -> Iterator[str]:
        return check_pair(runner, name, visit.halt, say)

    checked = Action(go, findings, [desk.controls.pair], stream, as_text, as_text)
    return Tab([checked], stop), findings


def _wire_passes(desk: Desk, status: Status, loads: list[Any]) -> None:
    """Looks at the passes when the page is opened, when another pair is in use, and on until there is nothing to wait
    for; first of all for the starting pair.

    Small requests rather than an open stream: a page that is only looked at keeps no connection.
    """
    head, controls, store, say = desk.head, desk.controls, desk.runner.store, desk.say

    def looked(text: str, kind: str, why: str = "") -> Changes:
        """Which passes there are, and another look soon while something is being prepared. why: Markdown."""
        chip = gr.Markdown(as_text(text) + why, elem_classes=["sv-passes", f"sv-passes-{kind}"])
        return {head.chip: chip, head.timer: gr.Timer(active=kind == "preparing")}

    def on_look(request: gr.Request, name: dict[str, Any], drafter: str, prompt: str) -> Changes:
        store.wanted.set()
        if not store.is_ready:
            return looked(say.step(store.step), "preparing") | {status.table: say("models.loading")}
        # The pair that this session has loaded meanwhile counts, not the one that the page knew when it asked.
        loaded = desk.visitors.pairs.get(request.session_hash)
        pair = store.in_use(loaded or PairName(**name))
        stage = store.preparer.stage(pair)
        kind = pair.passes.kind
        if stage.step is None:
            # The reasons are among this tab's notes.
            why = f" · [{say('passes.why')}](#models)" if kind == "plain" and stage.reasons else ""
            chip = looked(say.translated(passes_words(kind)), kind, why)
        else:
            chip = looked(say(f"passes.{kind}_yet", step=say.step(stage.step)), "preparing")
        described = {status.table: describe(pair, stage, say), status.notes: notes(pair, stage, say)}
        first = {} if name or loaded else _changes_for(desk, PairName(), drafter, prompt, keep=True)
        return chip | described | first

    for moment in (desk.page.load, head.timer.tick, *(loaded.success for loaded in loads)):
        inputs = [controls.pair, *(controls.fields[field] for field in ("drafter", "prompt"))]
        shown = [head.chip, head.timer, status.table, status.notes, *_depending_on_pair(desk)]
        moment(on_look, inputs, shown, **UNQUEUED)


def _depending_on_pair(desk: Desk) -> list[gr.components.Component]:
    """The components that `_changes_for` changes."""
    return [desk.head.line, *desk.controls.of_pair, *(component for component, _ in desk.pair_updates)]


def _changes_for(desk: Desk, name: PairName, drafter: str, prompt: str, keep: bool = False) -> Changes:
    """Changes of the page once it uses this pair, which is in memory. drafter, prompt, keep: see `Controls.suited`."""
    pair = desk.runner.store.in_use(name)
    updates = {component: update(pair) for component, update in desk.pair_updates}
    parts = [pair_line(pair.info())]
    if is_zero_gpu():  # first, as the line's end may be cut
        parts.insert(0, said("models.on_lent_gpu" if pair.lent else "models.on_processor"))
    line = as_text(desk.say.translated(joined(parts)))
    return {desk.head.line: line, **desk.controls.suited(name, drafter, prompt, keep), **updates}


def _create_others(desk: Desk, status: Status) -> list[Any]:
    """A form for a pair of the visitor's own, and known pairs as cards; returns the events of loading them."""
    say, form = desk.say, PairForm()
    _create_form(form, say)
    _create_needs(desk, form)
    with gr.Row(elem_classes=["sv-actions"]):
        load = gr.Button(say("models.load"), variant="primary", elem_id="load-pair")
        starting = gr.Button(say("models.home"), elem_id="load-home")
        shown = gr.Markdown(elem_classes=["sv-loading"])
    gr.Markdown(say("models.catalog"))
    problem = {"target": gr.Markdown(visible=False, elem_classes=["sv-problem"])}
    with gr.Row(elem_classes=["sv-cards"]):
        cards = [_catalog_card(desk, entry) for entry in CATALOG]
    gr.Markdown(say("models.published"))
    with gr.Row(elem_classes=["sv-cards"]):
        cards += [_catalog_card(desk, entry) for entry in PUBLISHED]
    fold_switch(say("models.published_list"), "published-parts")
    with gr.Column(elem_id="published-parts", elem_classes=["sv-more"]):
        listed = gr.Markdown(published_list("", say), elem_classes=["sv-note", "sv-notes"])
    desk.pair_updates.append((listed, lambda pair: published_list(pair.target_name, say)))

    # Only now is everything there that changes with the pair.
    apart = PairForm(problems=problem)
    loads = [_wire_load(desk, status, shown, card, apart, pair_of(entry), entry) for card, entry in cards]
    loads.append(_wire_load(desk, status, shown, starting, apart, PairName()))
    return [_wire_load(desk, status, shown, load, form), *loads]


def pair_of(entry: HubPair) -> PairName:
    return PairName(entry.target, (entry.draft,))


def _create_form(form: PairForm, say: Words) -> None:
    def add(name: str, kind: type[gr.components.Component] = gr.Textbox, **options: Any) -> None:
        words = {"label": say(f"models.{name}"), "info": say(f"models.{name}_about")}
        with gr.Column(min_width=220):
            form.fields[name] = kind(**words, elem_id=f"load-{name.replace('_', '-')}", **options)
            form.problems[name] = gr.Markdown(visible=False, elem_classes=["sv-problem"])

    gr.Markdown(say("models.own"))
    with gr.Row():
        add("target")
        add("draft", max_lines=6)
    fold_switch(say("models.advanced"), "load-advanced")
    with gr.Row(elem_id="load-advanced", elem_classes=["sv-more"]):
        add("revision")
        add("dtype", gr.Dropdown, choices=DTYPES, value="auto", filterable=False)
        # Not a gr.Number: an empty one is shown, and sent, as 0 once its tab is opened.
        add("draft_vocabulary")


def _create_needs(desk: Desk, form: PairForm) -> None:
    """Lays out the line that says what the pair in the form would need, once a field has been left."""
    line = gr.Markdown(elem_classes=["sv-note"], elem_id="load-needs")
    names = [name for name in form.fields if name != "draft_vocabulary"]
    fields = [form.fields[name] for name in names]

    def on_left(*texts: str) -> Iterator[Any]:
        yield ""  # what was said of other values must not stand there until this one's turn in the line has come
        values = dict(zip(names, texts))
        if not values["target"].strip():
            return
        try:
            text, kind = needed(values, desk.runner, desk.say), []
        except SpecvizError as error:
            text, kind = as_text(desk.say.error(error)), ["sv-refused"]  # unseen once it stands at a field (page.css)
        yield gr.update(value=text, elem_classes=["sv-note", *kind])

    left = [form.fields[name].blur for name in names]
    gr.on(left, on_left, fields, line, trigger_mode="always_last", **QUEUED)


def needed(fields: dict[str, str], runner: Runner, say: Words) -> str:
    """What the pair that the form's fields name needs, of which parts, and what is free. Raises SpecvizError where that
    is not known."""
    from specviz.bench.memory_need import ROWS, memory_need

    pair, device = pair_named({"draft_vocabulary": ""} | fields), runner.deployment.device
    with runner.line.joined("needs") as turn:  # it would disturb what is being timed
        runner.line.reached(turn)
        need = memory_need(pair.target or "", pair.draft, device=device, dtype=pair.dtype, revision=pair.revision)
    parts = [
        *(with_units(f"{role_names([Role(name)], say)} {Bytes(size)}") for name, size in need.weights.items()),
        say("models.needs_caches", tokens=need.tokens, size=Bytes(need.caches)),
        say("models.needs_logits", rows=ROWS, size=Bytes(need.logits)),
        *([say("models.needs_kernels", size=Bytes(need.kernels))] if need.kernels else []),
    ]
    key = "models.needs" if need.total <= need.free else "models.needs_more"
    values = {"dtype": need.dtype, "device": need.device, "parts": ", ".join(parts)}
    return as_text(say(key, total=Bytes(need.total), free=Bytes(need.free), **values))


def pair_named(fields: dict[str, str]) -> PairName:
    """The pair that the form's fields name. Raises SpecvizError with the field's name."""
    texts = {name: (text or "").strip() for name, text in fields.items()}
    if not texts["target"]:
        raise SpecvizError("Name a target model first.", "target")
    draft = tuple(filter(None, map(str.strip, re.split(r"[,\n]", texts["draft"]))))
    count = texts["draft_vocabulary"]
    if count and not (count.isascii() and count.isdigit()):
        raise SpecvizError("Enter a whole number, not {value}.", "draft_vocabulary", value=quoted(count))
    return PairName(texts["target"], draft, texts["revision"] or None, texts["dtype"], int(count) if count else None)


def _wire_load(
    desk: Desk,
    status: Status,
    shown: gr.Markdown,
    button: gr.Button,
    form: PairForm,
    name: PairName | None = None,
    entry: HubPair | None = None,
) -> Any:
    """Has a button load a pair, by default the one that the form names; returns the event.

    shown: where to show the progress, and at last that it is done. entry: of the catalogue, if it is a card, which asks
    before a large download: its label is the question, and a press on that label the answer.
    """
    runner, say, controls = desk.runner, desk.say, desk.controls
    drafter, prompt = controls.fields["drafter"], controls.fields["prompt"]

    def load(values: Changes, request: gr.Request, progress: gr.Progress = gr.Progress()) -> Iterator[Changes]:
        yield form.show(None, say)  # what was wrong with the last one
        if entry and size_bytes(entry) > LARGE and not is_downloaded(entry):
            question = say("models.entry_ask", name=entry.name, size=Bytes(size_bytes(entry)))
            if values[button] != question:
                yield {button: question}
                return
        try:
            pair = name or pair_named({field: values[component] for field, component in form.fields.items()})
            with runner.line.joined("load") as turn:
                for waited in runner.line.waiting(turn, threading.Event(), say):
                    progress(0.0, waited)
                used = runner.store.get(pair, lambda fraction, step: progress(fraction, say.step(step)))
                # Before the next turn, which may be this visitor's run, or the loading of somebody else's pair.
                desk.visitors.pairs[request.session_hash] = pair
                if runner.store.undecided(used):
                    progress(1.0, say.step(Sentence("trying drafters in turn")))
                    runner.store.preparer.await_first(used, threading.Event())
                changes = _changes_for(desk, pair, values[drafter], values[prompt])
        except SpecvizError as error:
            yield {shown: "", **form.show(error, say)}
            return
        cleared = {status.findings: say("models.check_about")}
        loaded = say("models.loaded", pair=as_text(used.info().name))
        yield {shown: loaded, **cleared, **changes}

    inputs = {button, drafter, prompt, *form.fields.values()}
    changed = [shown, button, *form.problems.values(), status.findings, *_depending_on_pair(desk)]
    return button.click(load, inputs, changed, concurrency_limit=None, show_progress_on=[shown], **INTERNAL)


def _catalog_card(desk: Desk, entry: HubPair) -> tuple[gr.Button, HubPair]:
    runner, say = desk.runner, desk.say
    button = gr.Button(catalog_label(entry, None, say), interactive=False, size="sm", min_width=200)

    def update(pair: ModelPair) -> Any:
        from specviz.models.placement import within_reach

        available = within_reach(runner.deployment.device)
        return gr.update(value=catalog_label(entry, available, say), interactive=needed_bytes(entry) <= available)

    desk.pair_updates.append((button, update))
    return button, entry


def catalog_label(entry: HubPair, available: int | None, say: Words) -> str:
    """The pair and, on a second line, its size, or what is missing where `available` bytes are known to be too few."""
    needed = needed_bytes(entry)
    if available is not None and needed > available:
        return say("models.entry_too_large", name=entry.name, missing=Bytes(needed - available))
    key = "models.entry_here" if is_downloaded(entry) else "models.entry_gated" if entry.gated else "models.entry"
    return say(key, name=entry.name, size=Bytes(size_bytes(entry)))


def published_list(used: str, say: Words) -> str:
    """The published parts by their targets, a list with links as Markdown. used: the name of the target in use, which
    comes first."""

    def is_used(target: str) -> bool:
        return used in (target, target.rpartition("/")[2])

    lines = []
    ordered = sorted(PUBLISHED, key=lambda entry: not is_used(entry.target))
    for target, group in groupby(ordered, lambda entry: entry.target):
        entries = list(group)
        name = say("models.gated", name=_link(target)) if entries[0].gated else _link(target)
        parts = [
            say("models.published_part", part=_link(entry.draft), method=entry.method, size=Bytes(entry.draft_bytes))
            for entry in entries
        ]
        lines.append(f"- {f'**{name}**' if is_used(target) else name}: {', '.join(parts)}")
    return "\n".join(lines)


def _link(repository: str) -> str:
    return f"[{repository}](https://huggingface.co/{repository})"
