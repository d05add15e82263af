"""The left column: the controls of a run, shared by the tabs that start one, and the buttons among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import gradio as gr

from specviz.records.errors import SpecvizError
from specviz.records.prompts import CHAT_PRESETS, PRESETS, SEED, TEMPERATURE, Preset
from specviz.records.settings import AUTO, DRAFTING, PLAIN, SETTINGS, SamplingParams
from specviz.records.words import Words
from specviz.ui import components
from specviz.ui.components import INTERNAL, UNQUEUED, as_text
from specviz.ui.device import PairName
from specviz.ui.orders import Order, read_form
from specviz.ui.runner import Runner
from specviz.ui.ways import (
    RULE_CHOICES,
    WAYS,
    about,
    default_branches,
    drafter_of,
    lacks,
    refusal,
    title,
)
from specviz.views.run_messages import as_json

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair


#: The values of sampling that do nothing, by the names of their controls, and these names.
OFF = asdict(SamplingParams())
SAMPLING = tuple(OFF)

#: The value of the slider of γ that stands for `AUTO`.
SLIDER_AUTO = 0

Fields = dict[str, gr.components.Component]

#: What Gradio is told to change, by component.
Changes = dict[gr.components.Component, Any]


class Controls:
    """The column's components: what is changed from run to run, the rest, and below them the buttons that start one.

    In a narrow window the run comes first, and all but the buttons is folded away until it is asked for. Laid out for a
    pair with all parts and its first drafter, the draft model: the starting pair itself may come later.
    """

    def __init__(self, runner: Runner, say: Words):
        self.runner, self.say = runner, say
        #: By the flat name of the setting each one holds.
        self.fields: Fields = {}
        components.fold_switch(say("controls.fields"), "fields rest", by_run=True, elem_id="fields-fold")
        with gr.Column(elem_classes=["sv-form"]):
            with gr.Column(elem_id="fields", elem_classes=["sv-fields"]):
                self._lay_out_prompt()
                with gr.Group(elem_classes=["sv-drafting"]):
                    self._lay_out_drafting()
            with gr.Column(elem_id="rest", elem_classes=["sv-fields"]):
                # There only while something is set: a part of the page, or a link, sets it.
                self.fields["coins"] = gr.Textbox("", label=say("controls.coins"), visible=False, elem_id="coins")
                components.fold_switch(say("controls.more"), "more-controls")
                with gr.Column(elem_id="more-controls", elem_classes=["sv-more"]):
                    self._lay_out_more()
                #: Whether a run's speedup is measured after it.
                self.measured = gr.Checkbox(True, label=say("page.measured"), elem_id="measured")
        with gr.Column(elem_classes=["sv-go"]):
            components.refused()
            components.corrected(say)
            self.go = gr.Button(say("page.go"), variant="primary", elem_id="go")
            self.stop = gr.Button(say("page.stop"), variant="stop", visible=False, elem_id="stop")
            self.race = gr.Button(say("page.start_race"), elem_id="start-race")
            self.stop_race = gr.Button(say("page.stop"), variant="stop", visible=False, elem_id="stop-race")
        # At the end, so that it moves nothing, and is seen while the rule is folded away.
        self.lossy_note = gr.Markdown(say("ways.lossy"), visible=False, elem_classes=["sv-warning"])
        #: Hidden: the name of the pair in use, empty until the page has learnt one. Rather than a gr.State: a page with
        #: State keeps a connection open for as long as it is open.
        self.pair = gr.JSON({}, visible=False)
        #: Hidden: values beyond the controls for the button that `remote` presses.
        self.details = gr.JSON({}, visible=False)
        #: Receives and answers requests of other parts of the page, see `specviz.ui.applying`.
        self.remote = components.remote()
        self._wire()

    def _lay_out_prompt(self) -> None:
        say = self.say

        def read(wanted: dict[str, Any]) -> list[Any]:
            pair = self.runner.store.in_use(PairName(**wanted["name"]))
            try:
                prompt = pair.encode(wanted["prompt"], wanted["chat"])
            except SpecvizError as error:
                return [say.error(error), None]
            return [prompt.text, len(prompt.ids)]

        prompt = gr.Textbox(
            PRESETS[0].prompt, label=say("controls.prompt"), lines=2, max_lines=10, elem_classes=["sv-prompt"]
        )
        #: For models that continue a text, and for those that answer: one row is shown.
        self.presets: dict[bool, gr.Row] = {}
        for chats in (False, True):
            with gr.Row(elem_classes=["sv-presets"], visible=not chats) as self.presets[chats]:
                for preset in _presets(chats):
                    label = say(f"controls.preset_{preset.name}")
                    button = gr.Button(label, size="sm", min_width=40, elem_classes=["sv-preset"])
                    button.click(lambda text=preset.prompt: text, None, prompt, **UNQUEUED)
        # On for every model that has a template; ignored where it is hidden.
        chat = gr.Checkbox(True, label=say("controls.chat"), visible=False, elem_id="chat")
        self.fields |= {"prompt": prompt, "chat": chat}
        #: The prompt as a model with a chat template reads it.
        self.reading = components.reading_view(say, read)

    def _lay_out_drafting(self) -> None:
        """Drafter, γ, temperature, and the settings of some drafters."""
        fields, say, most = self.fields, self.say, self.runner.deployment.max_draft_tokens
        fields["drafter"] = gr.Dropdown(
            choices(WAYS, say), value=WAYS[0], label=say("controls.drafter"), filterable=False, elem_id="drafter"
        )
        self.drafter_note = gr.Markdown(as_text(say(f"ways.{WAYS[0]}_about")), elem_classes=["sv-note"])
        self.lacking = components.lacking_view(say)  # the drafters that the pair in use lacks
        fields["num_draft_tokens"] = gr.Slider(
            SLIDER_AUTO, most, 4, step=1, label=say("controls.num_draft_tokens"), buttons=[]
        )
        step, label = SETTINGS["temperature"].step, say("controls.temperature")
        fields["temperature"] = gr.Slider(
            0, 2, value=TEMPERATURE, step=step, label=label, elem_id="temperature", buttons=[]
        )
        # The sampling that the pair's target recommends.
        self.recommended = components.recommended_view(say, (OFF | {"temperature": TEMPERATURE}).values())
        for name in DRAFTING:
            if not SETTINGS[name].rare:
                fields[name] = self._of_table(name, visible=name == "branches")

    def _lay_out_more(self) -> None:
        """Length, seed, sampling, rule, grammar."""
        fields, say, most = self.fields, self.say, self.runner.deployment.max_new_tokens
        fields["max_new_tokens"] = gr.Slider(
            1, most, min(128, most), step=1, label=say("controls.max_new_tokens"), buttons=[]
        )
        fields["seed"] = gr.Number(SEED, step=SETTINGS["seed"].step, label=say("controls.seed"))
        for name in ("top_k", "top_p", "min_p", *(name for name in DRAFTING if SETTINGS[name].rare)):
            fields[name] = self._of_table(name)
        rules = [(say(f"ways.rule_{name}"), name) for name in RULE_CHOICES]
        fields["rule"] = gr.Dropdown(rules, value="auto", label=say("controls.rule"), filterable=False)
        self.rule_note = gr.Markdown(say("ways.rule_auto_about"), elem_classes=["sv-note"])
        fields["grammar"] = gr.Textbox("", label=say("controls.grammar"), lines=2, max_lines=12, elem_id="grammar")

    def _of_table(self, name: str, visible: bool = True) -> gr.components.Component:
        """The control of a setting by its row in `SETTINGS`. Its label is a text of the page, or else the row's own."""
        row, key = SETTINGS[name], f"controls.{name}"
        shared = {"label": self.say(key) if key in self.say else f"{name}: {row.about}", "visible": visible}
        if row.kind is bool:
            return gr.Checkbox(row.default, **shared)
        if row.kind is str:
            return gr.Textbox(row.default, **shared)
        if row.choices:
            return gr.Radio(row.choices, value=row.choices[0], **shared)
        if row.kind is int and name in DRAFTING:
            most = row.most or (row.least or 0) + 1
            return gr.Slider(row.least, most, row.default or row.least, step=1, buttons=[], **shared)
        return gr.Number(row.default, step=row.step, **shared)

    @property
    def inputs(self) -> list[gr.components.Component]:
        """The inputs of every action that starts a run: the controls, then the pair."""
        return [*self.fields.values(), self.pair]

    def order(self, values: Sequence[Any], name: PairName, pair: ModelPair | None) -> Order:
        """The order that the values of `inputs` describe, for the pair of this name.

        pair: None while it is not in memory. Once it is, settings that the page had from no pair, or from another one,
        become those for this pair, and a control that drafter or pair do not read has no say.
        Raises SpecvizError with the control's name in `field`.
        """
        settings, page_pair = dict(zip(self.fields, values)), values[len(self.fields)]
        if settings["num_draft_tokens"] == SLIDER_AUTO:
            settings["num_draft_tokens"] = AUTO
        unread: set[str] = set()
        if pair is not None:
            if not page_pair or name != PairName(**page_pair):
                settings |= self._refitted(settings["drafter"], settings["prompt"], pair, first=not page_pair)
            unread = set(DRAFTING) - drafter_of(pair, settings["drafter"]).parameters
            unread |= set() if pair.has_chat_template else {"chat"}
        if settings["drafter"] == PLAIN:
            unread |= {"rule"}
        return Order(name, read_form({field: value for field, value in settings.items() if field not in unread}))

    def of_drafter(self, pair: ModelPair, name: str) -> Changes:
        """How its note and the controls that come and go with it change."""
        changes = {self.fields[field]: gr.update(**update) for field, update in properties(pair, name).items()}
        return {self.drafter_note: as_text(about(pair, name, self.say)), **changes}

    def of_rule(self, name: str) -> Changes:
        """How the two notes on the rule change."""
        from specviz.rules import rule_named

        lossy = name != "auto" and not rule_named(name).lossless
        return {self.rule_note: self.say(f"ways.rule_{name}_about"), self.lossy_note: gr.update(visible=lossy)}

    def _wire(self) -> None:
        """Controls come and go with the drafter; the page's scripts learn the sampling that is set."""
        drafter, rule = self.fields["drafter"], self.fields["rule"]
        # By the visitor's hand only: settings that are applied bring a drafter's other controls along.
        drafter.input(self._on_drafter, [self.pair, drafter], self._with_drafter, **UNQUEUED)
        rule.input(self.of_rule, rule, [self.rule_note, self.lossy_note], **UNQUEUED)
        sampling = [self.fields[name] for name in SAMPLING]
        changes = [component.change for component in sampling]
        gr.on(changes, None, sampling, None, js=components.sampling_heard(), **INTERNAL)

    def _refitted(self, drafter: str, prompt: str, pair: ModelPair, first: bool) -> dict[str, Any]:
        """The settings that `suited` will change, for an order that comes before it.

        drafter, prompt: as they were ordered. A drafter that the pair lacks is replaced, unless the visitor chose it
        for this pair: the one that stands there at the start was not chosen, and one chosen for another pair does not
        count.
        """
        changes = {"prompt": _prompt_for(pair, prompt), **({} if first else {"chat": True})}
        lacking = refusal(pair, drafter) is not None and not (first and drafter != WAYS[0])
        if first and not lacking:
            return changes
        chosen = self.runner.store.usual(pair) if lacking else drafter
        values = {field: update["value"] for field, update in properties(pair, chosen).items() if "value" in update}
        if lacking and self.runner.store.unnamed(pair):
            values["num_draft_tokens"] = AUTO
        return changes | {"drafter": chosen, **values}

    @property
    def of_pair(self) -> list[gr.components.Component]:
        """What `suited` changes."""
        fields = [self.fields[name] for name in ("prompt", "chat", "drafter")]
        views = [self.reading, self.lacking, self.recommended]
        return [self.pair, *fields, *self.presets.values(), *views, *self._with_drafter]

    def suited(self, name: PairName, drafter: str, prompt: str, keep: bool) -> Changes:
        """How the controls change once the page uses a pair, which is in memory.

        drafter, prompt: as they stand; a preset's prompt for another kind of model is replaced. keep: a drafter that
        the pair has stays as it is set, and so does the chat template; else the pair's usual ones are set. Where a
        trial is still to find the usual drafter, neither it nor the pair is set: the page asks again.
        """
        pair, say = self.runner.store.in_use(name), self.say
        chats, missing = pair.has_chat_template, lacks(pair, say)
        off = [{"label": title(way, say), "why": why} for way, (why, _) in missing.items()]
        names = {way: say("controls.lacked", drafter=title(way, say)) for way in missing}
        shown = gr.update(choices=[(names.get(way, name), way) for name, way in choices(WAYS, say)])
        changes = {
            self.fields["drafter"]: shown,
            self.pair: asdict(name),
            self.fields["chat"]: gr.update(visible=chats) if keep else gr.update(visible=chats, value=True),
            self.reading: gr.update(visible=True if chats else "hidden"),
            self.lacking: as_json({"pair": pair.info().name, "name": asdict(name), "off": off}),
            self.recommended: as_json(self._recommended_by(pair)),
            **{row: gr.update(visible=suits == chats) for suits, row in self.presets.items()},
        }
        if (suited := _prompt_for(pair, prompt)) != prompt:
            changes[self.fields["prompt"]] = suited
        if keep and self.runner.store.undecided(pair):
            changes |= {self.drafter_note: as_text(say("ways.undecided"))} if drafter in missing else {}
            return {component: change for component, change in changes.items() if component is not self.pair}
        chosen = drafter if keep and drafter not in missing else self.runner.store.usual(pair)
        if not keep or chosen != drafter:
            shown["value"] = chosen
            changes |= self.of_drafter(pair, chosen)
            if self.runner.store.unnamed(pair):
                changes[self.fields["num_draft_tokens"]]["value"] = SLIDER_AUTO
        return changes

    def _recommended_by(self, pair: ModelPair) -> dict[str, Any]:
        """What `recommended_view` shows; nothing where the page could not set it."""
        wanted, say = pair.recommended, self.say
        if wanted is None or wanted.temperature > self.fields["temperature"].maximum:
            return {"text": "", "settings": None}
        stated = {name: value for name, value in asdict(wanted).items() if name == "temperature" or value != OFF[name]}
        values = [say(f"controls.recommended_{name}", value=say.number(value, "g")) for name, value in stated.items()]
        text = say("controls.recommended", name=pair.target_name, values=", ".join(values))
        return {"text": text, "settings": asdict(wanted)}

    @property
    def _with_drafter(self) -> list[gr.components.Component]:
        return [self.drafter_note, *(self.fields[name] for name in _HIDEABLE)]

    def _on_drafter(self, pair: dict[str, Any], name: str) -> Changes:
        return self.of_drafter(self.runner.store.in_use(PairName(**pair)), name)


#: The controls that come and go with the drafter, in the order of the page.
_HIDEABLE = ("num_draft_tokens", *DRAFTING, "rule")


def properties(pair: ModelPair, name: str) -> dict[str, dict[str, Any]]:
    """By field, the properties of the controls that depend on the drafter, in the order of `_HIDEABLE`."""
    from specviz.passes.model_twins import default_exit, layer_count

    read, drafts = drafter_of(pair, name).parameters, {"visible": name != PLAIN}
    by_field: dict[str, dict[str, Any]] = {field: {"visible": field in read} for field in DRAFTING}
    by_field = {"num_draft_tokens": drafts, **by_field, "rule": drafts}
    by_field["branches"] |= {"value": default_branches(pair, name)}
    # A slider needs two values at least; where a small target has fewer, the engine says so.
    most = max(2, layer_count(pair.target) - 1)
    by_field["exit_layer"] |= {"maximum": most, "value": default_exit(pair.target)}
    return by_field


def _presets(chats: bool) -> Sequence[Preset]:
    return CHAT_PRESETS if chats else PRESETS


def _prompt_for(pair: ModelPair, prompt: str) -> str:
    """The prompt itself, or for a preset that suits models of the other kind the first one of this pair's kind."""
    chats = pair.has_chat_template
    return _presets(chats)[0].prompt if prompt in (preset.prompt for preset in _presets(not chats)) else prompt


def choices(drafters: Sequence[str], say: Words) -> list[tuple[str, str]]:
    return [(title(name, say), name) for name in drafters]
