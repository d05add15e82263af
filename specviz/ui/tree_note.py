"""Beside the branches of a tree: how long its pass takes, by passes timed here, and what makes it worth that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gradio as gr

from specviz.records.errors import SpecvizError
from specviz.records.runs import Prompt
from specviz.records.settings import RunSettings
from specviz.records.words import Said, joined, said
from specviz.theory.roofline import pass_seconds, tokens_to_match
from specviz.ui.components import UNQUEUED
from specviz.ui.controls import Controls
from specviz.ui.device import PairName
from specviz.ui.shown_runs import LiveRun, LiveRuns

if TYPE_CHECKING:
    from specviz.decoding.request import Request

#: The controls that are read, and no others: Gradio takes down what stands beside a control that an event reads.
READ = ("drafter", "num_draft_tokens", "branches", "temperature", "exit_layer", "bits")

#: A run of fewer rounds says little; two speeds that are closer than this are called alike.
FEWEST_ROUNDS, ALIKE = 16, 1.05


def wire_tree_note(controls: Controls, runs: LiveRuns) -> None:
    """Has the note follow the controls and the visitor's own runs."""
    note = controls.tree_note

    def look(visitor: gr.Request, heard: dict[str, Any], *values: Any) -> Any:
        request, own = _request(controls, heard, values), [*runs.runs.values()]
        own = [live for live in own if live.visit.session == visitor.session_hash and live.over.is_set()]
        text = "" if request is None else controls.say.spoken(said_of_tree(request, own))
        return gr.update(value=text, visible=bool(text))

    # By the visitor's hand, for another pair, or once what has set the controls, or ended a run, is over.
    hand = (controls.fields[name].input for name in READ if name != "drafter")
    moments: Iterable[Callable] = (*hand, controls.lacking.submit, *(event.then for event in controls.settled))
    for moment in moments:
        moment(look, [controls.pair, *(controls.fields[name] for name in READ)], note, **UNQUEUED)


def _request(controls: Controls, heard: dict[str, Any], values: Sequence[Any]) -> Request | None:
    """The run that these values describe, with all else as it is at first; None where it cannot be made."""
    if not heard:
        return None  # until there is a pair
    from specviz.decoding.request import prepare

    name, asked = PairName(**heard), {field: one.value for field, one in controls.fields.items()}
    pair = controls.runner.store.in_use(name)
    try:
        order = controls.order([*(asked | dict(zip(READ, values))).values(), heard], name, pair)
        return prepare(pair, order.settings, Prompt("", ()))
    except SpecvizError:
        return None  # said beside the control once a run is asked for


def said_of_tree(request: Request, runs: Iterable[LiveRun]) -> Said:
    """What is known of the trees of a request before it runs; nothing of chains, and of trees of no fixed size.

    runs: of one visitor, the latest last. A tree's round takes as much longer than a chain's as its pass does, at
    least: it is drafted and judged no faster. So what it has to make is a lower bound.
    """
    if request.branches == 1 or request.chooses_length or not request.drafter.narrows:
        return ""
    depth, nodes, times = request.num_draft_tokens, request.largest_draft, request.pair.passes.seconds_by_width
    if len(times) < 2:
        return said("controls.tree_unknown")
    plain, narrow, wide = pass_seconds(times, [1, 1 + depth, 1 + nodes])
    tree_pass = said(
        "controls.tree_pass",
        nodes=nodes,
        depth=depth,
        times=wide / narrow,
        widest=max(times),
        place=request.pair.place,
    )
    runs = [live for live in runs if _way(live.request) == _way(request) and live.trail.counts.rounds >= FEWEST_ROUNDS]
    trees = [live for live in runs if live.request.branches == request.branches]
    chains = [live for live in runs if live.request.branches == 1]
    both = [(tree, chain) for tree in trees for chain in chains if _as_chain(tree) == _as_chain(chain)]
    if both:
        return joined([tree_pass, _compared(*both[-1])], " ")
    if chains:
        counts = chains[-1].trail.counts
        made, taken = counts.acceptance_length, counts.seconds / counts.rounds
        rival = said("controls.rival_chain", depth=depth, made=made)
    else:
        made, taken, narrow, rival = 1.0, plain, plain, said("controls.rival_plain")
    needed, most = tokens_to_match(made, taken, wide - narrow), depth + 1
    if needed <= 1:  # every pass makes a token
        return tree_pass
    key = "controls.tree_needs" if needed <= most else "controls.tree_never"
    return joined([tree_pass, said(key, rival=rival, needed=needed, most=most)], " ")


def _way(request: Request) -> tuple[Any, ...]:
    """What has to be equal for a chain to be held against a tree."""
    from specviz.passes.static_passes import kind_of

    settings = request.settings
    drafting = replace(settings.drafting, branches=None)
    way = settings.drafter, settings.num_draft_tokens, drafting, settings.sampling.temperature
    return *way, id(request.pair), kind_of(request.passes)


def _as_chain(live: LiveRun) -> RunSettings:
    """A run's settings but for its branches and the rule that goes with them."""
    settings = live.request.settings
    return replace(settings, drafting=replace(settings.drafting, branches=None), rule="auto")


def _compared(tree: LiveRun, chain: LiveRun) -> Said:
    """Which of two runs was ahead: by what was timed of them off screen if both were, for drawing takes time."""
    where = "off_screen" if tree.beside and chain.beside else "on_screen"
    counts = [live.beside[1] if where == "off_screen" else live.trail.counts for live in (tree, chain)]
    made, chain_made = (one.acceptance_length for one in counts)
    tree_speed, chain_speed = (one.tokens_per_second for one in counts)
    ahead = "tree" if tree_speed > ALIKE * chain_speed else "chain" if chain_speed > ALIKE * tree_speed else "neither"
    values = {"made": made, "speed": tree_speed, "chain_made": chain_made, "chain_speed": chain_speed}
    return said(
        "controls.tree_compared", where=said(f"controls.{where}"), **values, ahead=said(f"controls.ahead_{ahead}")
    )
