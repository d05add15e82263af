"""The API's one function: a prompt in, the whole trace out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from specviz.records.errors import SpecvizError
from specviz.ui import engine
from specviz.ui.orders import Order, read_form
from specviz.ui.pairs import PairName
from specviz.ui.runner import Runner


def endpoint(runner: Runner) -> Callable[..., dict[str, Any]]:
    """The function of `runner`, with a parameter for each setting: Gradio's page of the API lists them."""

    def generate_trace(
        prompt: str,
        drafter: str = "draft_model",
        num_draft_tokens: int = 4,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        max_new_tokens: int = 128,
        seed: int = 0,
        chat: bool = False,
        branches: int | None = None,
        exit_layer: int | None = None,
        confidence: float = 0.0,
        rule: str = "auto",
    ) -> dict:
        """Continues a prompt on the page's own pair and returns the trace, schema specviz.run/1.

        drafter is plain or one of specviz.DRAFTERS; temperature 0 is greedy. branches: more than 1 makes trees; None
        is the drafter's own number. exit_layer: of early_exit. confidence: stop drafting below it. rule is auto,
        token, block, tree or typical, which is lossy.
        """
        # All of them by name, as `read_form` wants them.
        return _trace(runner, locals())

    return generate_trace


def _trace(runner: Runner, asked: dict[str, Any]) -> dict[str, Any]:
    try:
        pair = runner.store.get(PairName())
        order = Order(PairName(), read_form(asked)).settled(pair)
        request = order.request(pair, runner.deployment)
        done = [one for batch in runner.batches(order) for one in batch]
    except SpecvizError as error:
        raise gr.Error(error.message, print_exception=False) from error
    return engine.collect(request, done).to_dict()
