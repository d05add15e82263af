"""The left column: the controls of a run, shared by the tabs that start one, and the buttons below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import gradio as gr

from specviz.records.presets import PRESETS, TEMPERATURE
from specviz.records.settings import AUTO, BITS, MAX_BRANCHES, PLAIN, DraftParams
from specviz.records.words import Words
from specviz.ui import engine
from specviz.ui.components import as_text, corrected, fold_switch, refused, remote
from specviz.ui.events import QUIET
from specviz.ui.orders import Order, read_form
from specviz.ui.pairs import PairName
from specviz.ui.runner import Runner
from specviz.ui.ways import RULE_CHOICES, WAYS, about, available, default_branches, drafter_of

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair

#: Settings that some drafters do not read; their controls are hidden then.
DRAFTING = {one.name for one in fields(DraftParams)}

#: Where the slider of γ stands for `AUTO`.
CHOSEN = 0

Fields = dict[str, gr.components.Component]


@dataclass(frozen=True, slots=True)
class Controls:
    """The column's components, by what they say or do."""

    runner: Runner
    say: Words
    fields: Fields  # by the flat name of the setting each one holds
    pair: gr.JSON  # hidden: the name of the pair in use
    drafter_note: gr.Markdown
    rule_note: gr.Markdown
    lossy_note: gr.Markdown
    measured: gr.Checkbox  # whether a run's speedup is measured after it
    go: gr.Button
    race: gr.Button
    stop: gr.Button  # in the place of `go`, and of what other tabs start
    stop_race: gr.Button  # in the place of `race`
    details: gr.JSON  # hidden: what the button that `remote` presses is to know beyond the controls
    remote: gr.HTML  # hears and answers other parts of the page, see `specviz.ui.applying`

    @property
    def inputs(self) -> list[gr.components.Component]:
        """What a run is ordered with: the controls, then the pair."""
        return [*self.fields.values(), self.pair]

    def order(self, values: Sequence[Any]) -> Order:
        """The order that the values of `inputs` describe; a control that the drafter does not read has no say, once
        the first pair is there to tell.

        Raises SpecvizError with the control's name in `field`.
        """
        name, store = PairName(**values[len(self.fields)]), self.runner.store
        asked = dict(zip(self.fields, values))
        if asked["num_draft_tokens"] == CHOSEN:
            asked["num_draft_tokens"] = AUTO
        unread = DRAFTING - drafter_of(store.in_use(name), asked["drafter"]).reads if store.is_ready else set()
        if asked["drafter"] == PLAIN:
            unread |= {"rule"}
        return Order(name, read_form({field: value for field, value in asked.items() if field not in unread}))

    def about_drafter(self, pair: ModelPair, name: str) -> str:
        return as_text(about(pair, name, self.say))

    def about_rule(self, name: str) -> list[Any]:
        """What the two notes on the rule say."""
        lossy = name != "auto" and not engine.rule_named(name).lossless
        return [self.say(f"ways.rule_{name}_about"), gr.update(visible=lossy)]

    def wire(self) -> None:
        """Controls come and go with the drafter."""
        drafter, rule = self.fields["drafter"], self.fields["rule"]
        # By the visitor's hand only: settings that are applied bring a drafter's other controls along.
        drafter.input(self._on_drafter, [self.pair, drafter], self._of_drafter, **QUIET)
        rule.input(self.about_rule, rule, [self.rule_note, self.lossy_note], **QUIET)

    def follow(self, loaded: Any) -> None:
        """Offers what the pair can do that the event `loaded` has put into `pair`."""
        drafter = self.fields["drafter"]
        loaded.success(self._on_pair, [self.pair, drafter], [drafter, *self._of_drafter], **QUIET)

    @property
    def arriving(self) -> list[gr.components.Component]:
        """What `arrived` changes."""
        return [self.fields["drafter"], *self._of_drafter]

    def arrived(self, name: str) -> list[Any]:
        """The first pair is there: offers what it can do. What the visitor has set meanwhile stays."""
        offered = available(self.runner.store.home)
        if name in offered:
            return [gr.update(choices=choices(offered, self.say)), *[gr.skip()] * len(self._of_drafter)]
        return self._on_pair(asdict(PairName()), name)

    @property
    def _of_drafter(self) -> list[gr.components.Component]:
        return [self.drafter_note, *(self.fields[name] for name in _HIDEABLE)]

    def _on_drafter(self, pair: dict[str, Any], name: str) -> list[Any]:
        used = self.runner.store.in_use(PairName(**pair))
        return [self.about_drafter(used, name), *(gr.update(**one) for one in properties(used, name).values())]

    def _on_pair(self, pair: dict[str, Any], name: str) -> list[Any]:
        """The starting pair offers what it can do; with another one, each drafter says for itself what it lacks."""
        home = PairName(**pair) == PairName()
        offered = available(self.runner.store.home) if home else list(WAYS)
        chosen = name if name in offered else offered[0]
        return [gr.update(choices=choices(offered, self.say), value=chosen), *self._on_drafter(pair, chosen)]


#: The controls that come and go with the drafter, in the order of the page.
_HIDEABLE = ("num_draft_tokens", "branches", "exit_layer", "bits", "confidence", "rule")


def properties(pair: ModelPair, name: str) -> dict[str, Mapping[str, Any]]:
    """By field, the properties of the controls that depend on the drafter, in the order of `_HIDEABLE`."""
    read, drafts = drafter_of(pair, name).reads, {"visible": name != PLAIN}
    return {
        "num_draft_tokens": drafts,
        "branches": {"visible": "branches" in read, "value": default_branches(pair, name)},
        "exit_layer": {
            "visible": "exit_layer" in read,
            # A slider wants two values at least; where a small target has fewer, the engine says so.
            "maximum": max(2, engine.layer_count(pair.target) - 1),
            "value": engine.default_exit(pair.target),
        },
        "bits": {"visible": "bits" in read},
        "confidence": {"visible": "confidence" in read},
        "rule": drafts,
    }


def create_controls(runner: Runner, say: Words) -> Controls:
    """Lays out the column: prompt and presets, drafter, γ and the tree's width, temperature; the rest folded away.

    As it suits a pair with all parts and its first drafter, the draft model: the first pair itself may come later.
    """
    own: Fields = {}
    most = runner.deployment
    own["prompt"] = gr.Textbox(
        PRESETS[0].prompt, label=say("controls.prompt"), lines=2, max_lines=10, elem_classes=["sv-prompt"]
    )
    with gr.Row(elem_classes=["sv-presets"]):
        for preset in PRESETS:
            name = say(f"controls.preset_{preset.name}")
            button = gr.Button(name, size="sm", min_width=40, elem_classes=["sv-preset"])
            button.click(lambda text=preset.prompt: text, None, own["prompt"], **QUIET)
    with gr.Group(elem_classes=["sv-drafting"]):
        own["drafter"] = gr.Radio(
            choices(WAYS, say), value=WAYS[0], label=say("controls.drafter"), elem_classes=["sv-drafters"]
        )
        drafter_note = gr.Markdown(as_text(say(f"ways.{WAYS[0]}_about")), elem_classes=["sv-note"])
        own["num_draft_tokens"] = gr.Slider(
            CHOSEN, most.max_draft_tokens, 4, step=1, label=say("controls.num_draft_tokens")
        )
        own["temperature"] = gr.Slider(0, 2, value=TEMPERATURE, step=0.05, label=say("controls.temperature"))
        own["branches"] = gr.Slider(1, MAX_BRANCHES, 1, step=1, label=say("controls.branches"))
        own["exit_layer"] = gr.Slider(1, 2, 1, step=1, label=say("controls.exit_layer"), visible=False)
        own["bits"] = gr.Radio(BITS, value=BITS[0], label=say("controls.bits"), visible=False)
    # There only while something is set: a part of the page, or a link, sets it.
    own["coins"] = gr.Textbox("", label=say("controls.coins"), visible=False, elem_id="coins")
    fold_switch(say("controls.more"), "more-controls")
    with gr.Column(elem_id="more-controls", elem_classes=["sv-more"]):
        tokens = min(128, most.max_new_tokens)
        own["max_new_tokens"] = gr.Slider(1, most.max_new_tokens, tokens, step=1, label=say("controls.max_new_tokens"))
        own["seed"] = gr.Number(0, label=say("controls.seed"))
        own["top_k"] = gr.Number(0, label=say("controls.top_k"))
        own["top_p"] = gr.Number(1, step=0.05, label=say("controls.top_p"))
        own["min_p"] = gr.Number(0, step=0.01, label=say("controls.min_p"))
        own["chat"] = gr.Checkbox(False, label=say("controls.chat"))
        own["confidence"] = gr.Number(0, step=0.05, label=say("controls.confidence"))
        own["rule"] = gr.Dropdown(
            [(say(f"ways.rule_{name}"), name) for name in RULE_CHOICES],
            value="auto",
            label=say("controls.rule"),
            filterable=False,
        )
        rule_note = gr.Markdown(say("ways.rule_auto_about"), elem_classes=["sv-note"])
    # Below the fold, so that it is seen while the rule is folded away.
    lossy_note = gr.Markdown(say("ways.lossy"), visible=False, elem_classes=["sv-warning"])
    measured = gr.Checkbox(True, label=say("page.measured"), elem_id="measured")
    with gr.Column(elem_classes=["sv-go"]):
        refused()
        corrected(say)
        go = gr.Button(say("page.go"), variant="primary", elem_id="go")
        stop = gr.Button(say("page.stop"), variant="stop", visible=False, elem_id="stop")
        race = gr.Button(say("page.start_race"), elem_id="start-race")
        stop_race = gr.Button(say("page.stop"), variant="stop", visible=False, elem_id="stop-race")
    # A hidden value rather than a gr.State: a page with State keeps a connection open for as long as it is.
    name = gr.JSON(asdict(PairName()), visible=False)
    notes = drafter_note, rule_note, lossy_note
    hidden = gr.JSON({}, visible=False), remote()
    controls = Controls(runner, say, own, name, *notes, measured, go, race, stop, stop_race, *hidden)
    controls.wire()
    return controls


def choices(drafters: Sequence[str], say: Words) -> list[tuple[str, str]]:
    return [(say(f"ways.{name}"), name) for name in drafters]
