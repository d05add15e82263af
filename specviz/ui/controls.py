"""The controls of a run, shared by the tabs that start one, and the sentence beside the one that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from specviz.drafters import DRAFTERS, drafter_class
from specviz.models.pair import ModelPair
from specviz.passes.early_exits import default_exit, layer_count
from specviz.records import links
from specviz.records.errors import SpecvizError
from specviz.records.presets import PRESETS
from specviz.records.settings import MAX_BRANCHES, DraftParams
from specviz.records.words import Words
from specviz.rules import rule_named
from specviz.ui.components import as_text, fold_switch
from specviz.ui.deployment import Settings
from specviz.ui.orders import Order, PairName
from specviz.ui.runner import Runner
from specviz.ui.ways import PLAIN, RULE_CHOICES, WAYS, about, available, default_branches

#: What a control says while its drafter does not read it.
UNREAD = {"branches": None, "exit_layer": None, "confidence": 0.0}

QUIET = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}


@dataclass(frozen=True, slots=True)
class Controls:
    """The components by the name of the Order field they fill, and what is said about drafter and rule."""

    fields: dict[str, gr.components.Component]
    drafter_note: gr.Markdown
    rule_note: gr.Markdown
    lossy_note: gr.Markdown
    say: Words

    def order(self, pair: PairName, values: dict[str, Any]) -> Order:
        """The order that `values`, by field, describe."""
        name = values["drafter"]
        unread = {field: nothing for field, nothing in UNREAD.items() if field not in WAYS[name]}
        if name == PLAIN:
            unread |= {"drafter": None, "rule": "auto"}
        return Order(pair=pair, **(values | unread | {"prompt": values["prompt"] or ""}))

    def validations(self, error: SpecvizError | None) -> list[dict[str, Any]]:
        """One verdict a control, in their order: Gradio shows the sentence at the control and starts nothing."""
        verdicts = [gr.validate(True, "") for _ in self.fields]
        if error:
            place = list(self.fields).index(error.field) if error.field in self.fields else 0
            verdicts[place] = gr.validate(False, self.say.error(error))
        return verdicts

    def mistake(self, runner: Runner, pair: PairName, values: dict[str, Any]) -> SpecvizError | None:
        """What is wrong with these values. What only a loaded pair can tell is checked when it is loaded."""
        loaded = runner.store.loaded(pair)
        if loaded is None:
            return None
        try:
            self.order(pair, values).request(loaded, runner.settings)
        except SpecvizError as error:
            return error
        return None

    @property
    def outputs(self) -> list[gr.components.Component]:
        """What `applied` changes, in its order."""
        return [*self.fields.values(), self.drafter_note, self.rule_note, self.lossy_note]

    def applied(self, pair: ModelPair, settings: Mapping[str, Any]) -> list[Any]:
        """The changes that make the controls say `settings`, by field; what is not named there stays as it is.

        Raises SpecvizError for a field or a choice that the page does not have; values are checked when they are used.
        """
        changes: dict[str, dict[str, Any]] = {name: {} for name in self.fields}
        notes: list[Any] = [gr.skip()] * 3
        if "drafter" in settings:
            name = settings["drafter"] or PLAIN
            if name not in WAYS:
                raise SpecvizError("There is no drafter {name}.", "drafter", name=repr(name))
            for field, change in shape(pair, name).items():
                changes[field] |= change
            notes[0] = as_text(about(pair, name, self.say))
        if "rule" in settings:
            if settings["rule"] not in RULE_CHOICES:
                raise SpecvizError("There is no acceptance rule {name}.", "rule", name=repr(settings["rule"]))
            notes[1:] = self._about_rule(settings["rule"])
        for field, value in settings.items():
            if field not in changes:
                raise SpecvizError("There is no control {name}.", name=repr(field))
            if value is not None or field == "drafter":
                changes[field]["value"] = value or PLAIN if field == "drafter" else value
        return [*(gr.update(**change) if change else gr.skip() for change in changes.values()), *notes]

    def linked(self, pair: ModelPair, parameters: Mapping[str, str]) -> tuple[dict[str, Any], list[SpecvizError]]:
        """The settings that a link asks for and this page can do, and what is wrong with the others."""
        settings, errors = links.settings_of(parameters)
        for name, value in list(settings.items()):
            try:
                self._check_linked(pair, name, value)
            except SpecvizError as error:
                errors.append(error)
                del settings[name]
        return settings, errors

    def _check_linked(self, pair: ModelPair, name: str, value: Any) -> None:
        """What Gradio would refuse with sentences of its own, or not at all."""
        if name == "drafter":
            if value not in WAYS:
                raise SpecvizError("There is no drafter {name}.", name, name=repr(value))
            if value != PLAIN:
                drafter_class(pair, value).check(pair, DraftParams())
        if name == "rule" and value not in RULE_CHOICES:
            raise SpecvizError("There is no acceptance rule {name}.", name, name=repr(value))
        control = self.fields[name]
        if isinstance(control, gr.Slider) and value is not None and not control.minimum <= value <= control.maximum:
            raise SpecvizError(
                "The link says {name}={value}; here it runs from {least} to {most}.",
                name,
                name=name,
                value=value,
                least=control.minimum,
                most=control.maximum,
            )

    def wire(self, runner: Runner, pair: gr.JSON, loads: list[Any]) -> None:
        """Controls come and go with the drafter; these events pass the queue by, so a run in progress delays none.

        pair: holds the name of the pair in use. loads: the events that put another one there.
        """
        drafter, rule = self.fields["drafter"], self.fields["rule"]
        shown = [self.drafter_note, *(self.fields[name] for name in ("num_draft_tokens", *UNREAD, "rule"))]

        def on_drafter(pair: dict[str, Any], name: str) -> list[Any]:
            loaded = runner.store.loaded(PairName(**pair)) or runner.store.home
            return [
                as_text(about(loaded, name, self.say)),
                *(gr.update(**change) for change in shape(loaded, name).values()),
            ]

        def on_pair(pair: dict[str, Any], name: str) -> list[Any]:
            """The starting pair offers what it can do; of another, each drafter says for itself what it lacks."""
            home = PairName(**pair) == PairName()
            offered = available(runner.store.home) if home else [*DRAFTERS, PLAIN]
            chosen = name if name in offered else offered[0]
            return [gr.update(choices=_choices(offered, self.say), value=chosen), *on_drafter(pair, chosen)]

        # By the visitor's hand only: settings that are applied bring a drafter's other controls along.
        drafter.input(on_drafter, [pair, drafter], shown, **QUIET)
        for loaded in loads:
            loaded.success(on_pair, [pair, drafter], [drafter, *shown], **QUIET)
        rule.input(self._about_rule, rule, [self.rule_note, self.lossy_note], **QUIET)

    def _about_rule(self, name: str) -> list[Any]:
        lossy = name != "auto" and not rule_named(name).lossless
        return [self.say(f"ways.rule_{name}_about"), gr.update(visible=lossy)]


def shape(pair: ModelPair, name: str) -> dict[str, Mapping[str, Any]]:
    """By field, the properties of the controls that depend on the drafter, in the order of the page."""
    read = WAYS[name]
    speculative = {"visible": name != PLAIN}
    return {
        "num_draft_tokens": speculative,
        "branches": {"visible": "branches" in read, "value": default_branches(pair, name)},
        "exit_layer": {
            "visible": "exit_layer" in read,
            # A slider wants two values at least; of those a small target lacks, the engine says so.
            "maximum": max(2, layer_count(pair.target) - 1),
            "value": default_exit(pair.target),
        },
        "confidence": {"visible": "confidence" in read},
        "rule": speculative,
    }


def create_controls(settings: Settings, pair: ModelPair, say: Words) -> Controls:
    """Prompt with presets, drafter, γ and the tree's width, temperature; the rest folded away."""
    fields: dict[str, gr.components.Component] = {}
    drafters = available(pair)
    shapes = shape(pair, drafters[0])
    fields["prompt"] = gr.Textbox(
        PRESETS[0].prompt, label=say("controls.prompt"), lines=4, max_lines=10, elem_classes=["sv-prompt"]
    )
    with gr.Row(elem_classes=["sv-presets"]):
        for preset in PRESETS:
            name = say(f"controls.preset_{preset.name}")
            button = gr.Button(name, size="sm", min_width=40, elem_classes=["sv-preset"])
            button.click(lambda text=preset.prompt: text, None, fields["prompt"], **QUIET)
    with gr.Group(elem_classes=["sv-drafting"]):
        fields["drafter"] = gr.Radio(
            _choices(drafters, say), value=drafters[0], label=say("controls.drafter"), elem_classes=["sv-drafters"]
        )
        drafter_note = gr.Markdown(as_text(about(pair, drafters[0], say)), elem_classes=["sv-note"])
        fields["num_draft_tokens"] = gr.Slider(
            1,
            settings.max_draft_tokens,
            value=4,
            step=1,
            label=say("controls.num_draft_tokens"),
            **shapes["num_draft_tokens"],
        )
        fields["branches"] = gr.Slider(1, MAX_BRANCHES, step=1, label=say("controls.branches"), **shapes["branches"])
        fields["exit_layer"] = gr.Slider(1, step=1, label=say("controls.exit_layer"), **shapes["exit_layer"])
        fields["temperature"] = gr.Slider(0, 2, value=0.8, step=0.05, label=say("controls.temperature"))
    fold_switch(say("controls.more"), "more-controls")
    with gr.Column(elem_id="more-controls", elem_classes=["sv-more"]):
        fields["max_new_tokens"] = gr.Slider(
            1,
            settings.max_new_tokens,
            value=min(128, settings.max_new_tokens),
            step=1,
            label=say("controls.max_new_tokens"),
        )
        fields["seed"] = gr.Number(0, label=say("controls.seed"))
        fields["top_k"] = gr.Number(0, label=say("controls.top_k"))
        fields["top_p"] = gr.Number(1, step=0.05, label=say("controls.top_p"))
        fields["min_p"] = gr.Number(0, step=0.01, label=say("controls.min_p"))
        fields["chat"] = gr.Checkbox(False, label=say("controls.chat"))
        fields["confidence"] = gr.Number(0, step=0.05, label=say("controls.confidence"), **shapes["confidence"])
        fields["rule"] = gr.Dropdown(
            [(say(f"ways.rule_{name}"), name) for name in RULE_CHOICES],
            value="auto",
            label=say("controls.rule"),
            filterable=False,
            **shapes["rule"],
        )
        rule_note = gr.Markdown(say("ways.rule_auto_about"), elem_classes=["sv-note"])
    # Below the fold, so that it is seen folded too.
    lossy_note = gr.Markdown(say("ways.lossy"), visible=False, elem_classes=["sv-warning"])
    return Controls(fields, drafter_note, rule_note, lossy_note, say)


def _choices(drafters: list[str], say: Words) -> list[tuple[str, str]]:
    return [(say(f"ways.{name}"), name) for name in drafters]
