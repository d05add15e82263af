"""The API's one function: a prompt in, the whole trace out; or a sentence that begins with the parameter to blame."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import JSONResponse

from specviz.records.errors import SpecvizError, quoted, shortened
from specviz.ui import engine
from specviz.ui.orders import Order, read_form
from specviz.ui.pairs import PairName
from specviz.ui.runner import Runner

#: What the function is called in a request's address.
API_NAME = "generate"


class Page(gr.Blocks):
    """A page that refuses calls of its API before Gradio trips over them and writes a traceback into the log."""

    def validate_inputs(self, block_fn: Any, inputs: list[Any]) -> None:
        """What Gradio asks of a call's values before it reads them. Raises gr.Error."""
        if block_fn.api_name == API_NAME:
            _check_values(list(inspect.signature(block_fn.fn).parameters), inputs)
        super().validate_inputs(block_fn, inputs)


def _check_values(names: Sequence[str], values: Sequence[Any]) -> None:
    """Raises gr.Error if one is missing, or is an object: Gradio would take some of these for files to fetch."""
    if len(values) < len(names):
        raise _refusal(names[len(values)], f"This value is missing. The call takes {', '.join(names)}.")
    for name, value in zip(names, values):
        parts = value if isinstance(value, list) else [value]
        if any(isinstance(part, (dict, list)) for part in parts):
            raise _refusal(name, f"This must be a number, a text or a list of them, not {quoted(value)}.")


async def refuse_parameters(request: Request, error: Exception) -> JSONResponse:
    """The answer to a call whose parameters, given by name, the function does not have or does not get."""
    if f"/call/v2/{API_NAME}" not in request.url.path:
        raise error
    return JSONResponse({"detail": shortened(str(error))}, status_code=422)


def _refusal(parameter: str | None, sentence: str) -> gr.Error:
    """For whoever calls the API; without a traceback in the log."""
    return gr.Error(sentence if parameter is None else f"{parameter}: {sentence}", print_exception=False)


def endpoint(runner: Runner) -> Callable[..., dict[str, Any]]:
    """The function of `runner`, with a parameter for each setting: Gradio's page of the API lists them."""

    def generate_trace(
        prompt: str,
        drafter: str = "draft_model",
        num_draft_tokens: int | str = 4,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        max_new_tokens: int = 128,
        seed: int = 0,
        chat: bool = False,
        branches: int | None = None,
        exit_layer: int | None = None,
        bits: int | None = None,
        confidence: float = 0.0,
        rule: str = "auto",
        coins: str = "",
    ) -> dict:
        """Continues a prompt on the page's own pair and returns the trace, schema specviz.run/1.

        drafter is plain or one of specviz.DRAFTERS; num_draft_tokens is a number, or auto to have it chosen in each
        round; temperature 0 is greedy. branches: more than 1 makes trees; None is the drafter's own number. exit_layer:
        of early_exit. bits: of quantised_self, 8 or 4. confidence: stop drafting below it. rule is auto, token, block,
        tree, multi_path or typical, which is lossy. coins: set by hand, such as 3.2=0.41 for the second draft token of
        round 3.
        """
        # All of them by name, as `read_form` wants them.
        return _trace(runner, locals())

    return generate_trace


def _trace(runner: Runner, asked: dict[str, Any]) -> dict[str, Any]:
    try:
        pair = runner.store.get(PairName())
        order = Order(PairName(), read_form(asked)).settled(pair)
        request = order.request(pair, runner.deployment)
        with runner.line.joined("api") as turn:
            runner.line.reached(turn)
            done = [one for batch in runner.batches(order) for one in batch]
    except SpecvizError as error:
        raise _refusal(error.field, error.message) from error
    return engine.collect(request, done).to_dict()
