"""Endpoints as functions of Gradio, which are tools of its MCP server, too: called, waited for, refused.

An error is a sentence that begins with the parameter to blame.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import JSONResponse

from specviz.records.errors import SpecvizError, quoted, shortened
from specviz.records.words import Said
from specviz.ui.api.endpoints import ENDPOINTS, NEVER, SAY, Endpoint
from specviz.ui.runner import Runner


class Page(gr.Blocks):
    """A page that refuses calls of its API before Gradio trips over them and writes a traceback into the log."""

    def validate_inputs(self, block_fn: Any, inputs: list[Any]) -> None:
        """Checks the values of a call before Gradio reads them. Raises gr.Error."""
        if block_fn.api_name in ENDPOINTS:
            _check_values(list(ENDPOINTS[block_fn.api_name].parameters), inputs)
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
    """The answer to a call by name with unknown or missing parameters."""
    if "/call/v2/" not in request.url.path:
        raise error
    return JSONResponse({"detail": shortened(str(error))}, status_code=422)


def _refusal(parameter: str | None, sentence: str) -> gr.Error:
    """An error for the caller, without a traceback in the log."""
    return gr.Error(sentence if parameter is None else f"{parameter}: {sentence}", print_exception=False)


def add_endpoints(runner: Runner) -> None:
    """Adds all of them to the page that is being built."""
    for name, endpoint in ENDPOINTS.items():
        gr.api(function_of(name, endpoint, runner), api_name=name, concurrency_limit=None)


def function_of(name: str, endpoint: Endpoint, runner: Runner) -> Callable[..., Any]:
    """An endpoint as a function with a signature and a docstring: Gradio's page of the API and its MCP tools show them.

    Waiting and progress are reported as Gradio's progress.
    """
    signature = inspect.Signature(
        [
            inspect.Parameter(
                key,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=inspect.Parameter.empty if parameter.required else parameter.default,
                annotation=parameter.kind,
            )
            for key, parameter in endpoint.parameters.items()
        ],
        return_annotation=dict,
    )

    def growing(*values: Any, **named: Any) -> Iterator[dict[str, Any]]:
        bound = signature.bind(*values, **named)
        bound.apply_defaults()
        yield from _answers(endpoint, runner, bound.arguments)

    def call_once(*values: Any, **named: Any) -> dict[str, Any]:
        [answer] = growing(*values, **named)
        return answer

    call: Any = growing if endpoint.grows else call_once
    call.__name__, call.__signature__ = name, signature
    call.__annotations__ = {key: parameter.kind for key, parameter in endpoint.parameters.items()}
    arguments = "".join(f"    {key}: {parameter.about}\n" for key, parameter in endpoint.parameters.items())
    call.__doc__ = f"{endpoint.about}\n\nArgs:\n{arguments}" if arguments else endpoint.about
    return call


def _answers(endpoint: Endpoint, runner: Runner, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Waits in line for the models like any visitor; mistakes are refused before."""
    line = runner.line
    try:
        if not runner.store.is_ready:
            _report(SAY("common.starting"), 0.0)
        work = endpoint.begin(runner, values, _report)
        with line.joined(endpoint.kind) as turn:
            for sentence in line.waiting(turn, NEVER, SAY):
                _report(sentence, 0.0)
            yield from work
    except SpecvizError as error:
        raise _refusal(error.field, error.message) from error


def _report(text: Said, fraction: float) -> None:
    """In hundredths: MCP's notifications have no fractions."""
    # Gradio passes it as a parameter only to functions with components.
    gr.Progress()((round(100 * fraction), 100), desc=SAY.translated(text), unit="%")
