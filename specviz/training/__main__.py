"""`python -m specviz.training RECIPE`: trains one part of a pair and reports how good it is."""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import signal
import sys
import tempfile
from collections.abc import Sequence

#: The handler of Ctrl-C while a recipe runs; during the imports it ends the process silently.
INTERRUPTION = signal.getsignal(signal.SIGINT)
if __name__ == "__main__" and INTERRUPTION is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import torch
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from specviz.models.loading import load_pair
from specviz.models.pair import ModelPair
from specviz.models.placement import Place, automatic_dtype, device_named, dtype_name, dtype_named, place_named
from specviz.models.sources import find_model, load_tokenizer
from specviz.models.vocabularies import same_vocabulary
from specviz.models.weights import load_weights
from specviz.parts.formats import recognise
from specviz.parts.part_files import PartFiles
from specviz.passes.devices import is_spread
from specviz.records.assets import EMBEDDED
from specviz.records.errors import SpecvizError
from specviz.records.streams import carried_out
from specviz.training.data import (
    BLOCK_SIZE,
    Corpus,
    batches_to_write,
    read_corpus,
    with_own_texts,
    with_target_text,
    writing,
)
from specviz.training.dspark import DSparkRecipe
from specviz.training.forecast import forecast
from specviz.training.heads import Eagle3Recipe, MedusaRecipe, MtpRecipe
from specviz.training.loop import Recipe, Schedule, checkpoint_of, in_lines, train, validate
from specviz.training.models import DraftRecipe, TargetRecipe, small_llama
from specviz.training.parts import PartRecipe

#: Recipe -> its description, default number of tokens to learn from on a GPU and on a processor, and default learning
#: rate of the matrices. Two cores need about an hour for the latter, with a target of 100 million parameters.
_RECIPES = {
    "target": ("a small Llama from scratch, with early exits", 15_000_000, 15_000_000, 2e-3),
    "draft": ("a small Llama that imitates the target", 3_000_000, 600_000, 3e-3),
    "medusa": ("Medusa heads on the frozen target", 1_000_000, 300_000, 3e-3),
    "eagle": ("an EAGLE head on the frozen target", 1_500_000, 300_000, 3e-3),
    "mtp": ("an MTP module on the frozen target", 1_500_000, 300_000, 3e-3),
    "parallel": ("a DSpark head on the frozen target, which drafts all tokens in one pass", 1_500_000, 300_000, 3e-3),
}

#: And how many tokens the target writes.
_CONTINUATIONS, _CONTINUATIONS_ON_CPU = 500_000, 130_000

#: What recipes can start from, where it is not simply a part of their kind.
_STARTS = {
    "target": "a Llama",
    "draft": "a draft model",
    "eagle": "an EAGLE head, or a one-layer draft model,",
    "parallel": "a DSpark head, or a draft model,",
}

#: Beyond it, random numbers of later steps have no seed.
_LARGEST_SEED = 10**12 - 1

#: Recipes of parts on the frozen target, by the drafter that reads them.
_PARTS: dict[str, type[PartRecipe]] = {
    recipe.name: recipe for recipe in (Eagle3Recipe, MedusaRecipe, MtpRecipe, DSparkRecipe)
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one recipe; a mistake the user can fix prints one sentence and returns exit status 2."""
    return carried_out(lambda: _carry_out(arguments))


def _carry_out(arguments: Sequence[str] | None) -> None:
    options = _parser().parse_args(arguments)
    _fill_in(options)
    _check(options)
    try:
        _run(options)
    except (KeyboardInterrupt, BrokenPipeError):
        if options.measure is None:
            print("\nStopped. The same command goes on after the last checkpoint, if there is one.", file=sys.stderr)
        raise


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m specviz.training", description=__doc__)
    recipes = parser.add_subparsers(dest="recipe", required=True, metavar="RECIPE")
    for name, (description, *tokens, lr) in _RECIPES.items():
        recipe = recipes.add_parser(name, help=description, description=description)
        _add_common(recipe, "{:,}, on a processor {:,}".format(*tokens), lr)
        if name in ("target", "draft"):
            layers, width = (8, 384) if name == "target" else (1, 384)
            recipe.add_argument("--layers", type=int, default=layers, help="(default: %(default)s)")
            recipe.add_argument("--width", type=int, default=width, help="a multiple of 64 (default: %(default)s)")
            recipe.add_argument(
                "--compile", action="store_true", help="use torch.compile: a slow start, then faster steps"
            )
        if name == "target":
            recipe.add_argument("--tokenizer", default=str(EMBEDDED / "target"), help="folder (default: embedded)")
        else:
            recipe.add_argument("--target", default=str(EMBEDDED / "target"), help="folder (default: embedded)")
            recipe.add_argument(
                "--continuations",
                type=int,
                metavar="N",
                help="tokens that the target itself writes, for half of the training; 0: none "
                f"(default: {_CONTINUATIONS:,}, on a processor {_CONTINUATIONS_ON_CPU:,})",
            )
        start = _STARTS.get(name, "a part of this kind")
        recipe.add_argument("--start", metavar="FOLDER", help=f"{start} to continue training, instead of a new one")
    return parser


def _add_common(recipe: argparse.ArgumentParser, tokens: str, lr: float) -> None:
    recipe.add_argument(
        "--text",
        type=pathlib.Path,
        nargs="+",
        action="extend",
        required=True,
        metavar="FILE",
        help=".txt, .xz, or a folder of text",
    )
    recipe.add_argument(
        "--weights", type=float, nargs="+", action="extend", default=[], help="how often each text is drawn from"
    )
    recipe.add_argument(
        "--held-out",
        type=int,
        nargs="+",
        action="extend",
        default=[],
        metavar="N",
        help="tokens at the end of each text that are kept for measuring",
    )
    recipe.add_argument("--out", type=pathlib.Path, metavar="FOLDER", help="where the result goes")
    recipe.add_argument(
        "--work",
        type=pathlib.Path,
        metavar="FOLDER",
        help="where checkpoints and the target's own text go; a run found there is resumed (default: OUT/training)",
    )
    recipe.add_argument(
        "--measure",
        type=pathlib.Path,
        metavar="FILE",
        help="learn nothing: measure what --start names on held-out text, and write the figures to this JSON file",
    )
    recipe.add_argument("--tokens", type=int, metavar="N", help=f"to learn from in total (default: {tokens})")
    recipe.add_argument("--batch", type=int, default=4, help="blocks of 256 tokens per step (default: %(default)s)")
    recipe.add_argument("--lr", type=float, default=lr, help="learning rate (default: %(default)s)")
    recipe.add_argument("--every", type=int, default=100, help="steps between checkpoints (default: %(default)s)")
    recipe.add_argument("--device", default="auto", help="auto, cpu, cuda, ... (default: %(default)s)")
    recipe.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"), help="of the products")
    recipe.add_argument("--seed", type=int, default=0)


def _fill_in(options: argparse.Namespace) -> None:
    """The defaults that depend on the device. Raises SpecvizError (field ``device``) for one that cannot be used."""
    on_cpu = place_named(options.device).device.type == "cpu"
    if options.tokens is None:
        options.tokens = _RECIPES[options.recipe][2 if on_cpu else 1]
    if getattr(options, "continuations", 0) is None:
        options.continuations = _CONTINUATIONS_ON_CPU if on_cpu else _CONTINUATIONS


def _check(options: argparse.Namespace) -> None:
    for name in ("tokens", "batch", "every", "lr"):
        if not 0 < getattr(options, name) < math.inf:
            raise SpecvizError("--{name} must be a positive number.", name, name=name)
    if abs(options.seed) > _LARGEST_SEED:
        raise SpecvizError("--seed must be a whole number of at most 12 digits.", "seed")
    if options.measure is not None:
        if options.start is None:
            raise SpecvizError("--measure needs something to measure: name it with --start.", "measure")
        try:
            options.measure.open("ab").close()
        except OSError as error:
            raise SpecvizError(
                "{path} cannot be written ({reason}): name a file in a folder that you may write to.",
                "measure",
                path=options.measure,
                reason=error.strerror,
            ) from error
    if getattr(options, "continuations", 0) < 0:
        raise SpecvizError("--continuations must be a number of tokens, or 0.", "continuations")
    if options.recipe in ("target", "draft") and (options.layers < 1 or options.width < 64 or options.width % 64):
        raise SpecvizError("--layers must be at least 1, and --width a multiple of 64.", "width")


def _measure(options: argparse.Namespace) -> None:
    """How good what --start names is on held-out text, and on what the target writes after that."""
    recipe, corpus, target = _from_scratch(options) if options.recipe == "target" else _on_a_target(options)
    results = validate(recipe, corpus if target is None else with_own_texts(target, corpus))
    print(in_lines(f"{options.start}, held out", results))
    names = ("loss", "accepted", "agreement")
    figures = {
        text: {part: dict(zip(names, values)) for part, values in found.items()} for text, found in results.items()
    }
    report = {"recipe": options.recipe, "start": options.start, "dtype": dtype_name(_dtype(options)), "texts": figures}
    options.measure.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _run(options: argparse.Namespace) -> None:
    if options.measure is not None:
        _measure(options)
        return
    out = options.out or _default_out(options)
    target_folder = getattr(options, "target", None)
    if target_folder is not None and out.resolve() == pathlib.Path(target_folder).resolve():
        raise SpecvizError(
            "--out is the target's own folder, whose files would be overwritten: name another folder, such as "
            "{folder}.",
            "out",
            folder=out / options.recipe,
        )
    # In a folder of its own, where nobody takes it for a part of the result.
    work = options.work or out / "training"
    recipe, corpus, target = _from_scratch(options) if options.recipe == "target" else _on_a_target(options)
    if getattr(options, "compile", False):
        recipe.student.compile(dynamic=False)
    schedule = Schedule(options.tokens, options.batch, options.lr, work, options.seed, options.every)
    own, missing = work / "continuations.safetensors", range(0)
    if target is not None:
        missing = batches_to_write(target, options.continuations, own)
    for folder in (out, work):
        with writing(folder), tempfile.TemporaryFile(dir=folder):
            pass  # before hours of work
    if not checkpoint_of(recipe, schedule).exists():
        print(forecast(recipe, corpus, schedule, target, len(missing)), flush=True)
    if target is not None and options.continuations:
        corpus = with_target_text(target, corpus, options.continuations, own)
    train(recipe, corpus, schedule, out)


def _default_out(options: argparse.Namespace) -> pathlib.Path:
    """Where loading looks: inside the target's folder. The embedded target has its parts, which stay as they are."""
    folder = pathlib.Path(getattr(options, "target", ""))
    if options.recipe == "target" or not folder.is_dir() or folder.resolve() == (EMBEDDED / "target").resolve():
        raise SpecvizError("Name the folder for the result with --out.", "out")
    return folder / options.recipe


def _from_scratch(options: argparse.Namespace) -> tuple[Recipe, Corpus, None]:
    device = device_named(options.device)
    tokenizer = load_tokenizer(find_model(options.tokenizer, "tokenizer", None, None))
    corpus = read_corpus(options.text, tokenizer, options.weights, options.held_out)
    return TargetRecipe(_model(options, tokenizer, device), tokenizer, _dtype(options), options.seed), corpus, None


def _on_a_target(options: argparse.Namespace) -> tuple[Recipe, Corpus, PreTrainedModel]:
    """And the target, which may write the rest of the corpus."""
    pair = _load(options)
    corpus = read_corpus(options.text, pair.tokenizer, options.weights, options.held_out)
    recipe: Recipe
    if options.recipe == "draft":
        recipe = DraftRecipe(pair.target, _model(options, pair.tokenizer, pair.device), pair.tokenizer)
    else:
        recipe = _PARTS[options.recipe](pair.target, _part_or_draft(options, pair), options.seed)
    return recipe, corpus, pair.target


def _load(options: argparse.Namespace) -> ModelPair:
    threads = torch.get_num_threads()
    pair = load_pair(options.target, device=options.device, dtype=_dtype(options), passes="plain")
    # A pair chooses the threads that suit one token per pass; training passes are wide.
    torch.set_num_threads(threads)
    if is_spread(pair.target):
        raise SpecvizError("Training needs the whole target on one device, but it does not fit on one.", "device")
    if pair.context_length is not None and pair.context_length < BLOCK_SIZE:
        raise SpecvizError(
            "{name} reads at most {most} tokens, but training reads blocks of {block}.",
            "target",
            name=pair.target_name,
            most=pair.context_length,
            block=BLOCK_SIZE,
        )
    if pair.dtype == torch.float16:
        raise SpecvizError("Training in float16 is unstable: use --dtype float32.", "dtype")
    return pair


def _dtype(options: argparse.Namespace) -> torch.dtype:
    """Of the products: for ``auto`` what a run takes on this device, but never float16, in which training diverges."""
    chosen = dtype_named(options.dtype) or automatic_dtype(place_named(options.device).device, None, full_bytes=0)
    return torch.float32 if chosen == torch.float16 else chosen


def _model(options: argparse.Namespace, tokenizer: PreTrainedTokenizerBase, device: torch.device) -> PreTrainedModel:
    """The model to train, in float32: a new one, or the one to start from."""
    if options.start is None:
        return small_llama(tokenizer, options.layers, options.width, seed=options.seed).to(device)
    return _start(options, tokenizer, device)


def _part_or_draft(options: argparse.Namespace, pair: ModelPair) -> pathlib.Path | PreTrainedModel | None:
    """What a part starts from: the folder of one, or a draft model, in float32; None: nothing."""
    if options.start is None:
        return None
    files = PartFiles.at(pathlib.Path(options.start))
    if "kind" in files.settings or recognise(files):
        return files.folder
    return _start(options, pair.tokenizer, pair.device)


def _start(options: argparse.Namespace, tokenizer: PreTrainedTokenizerBase, device: torch.device) -> PreTrainedModel:
    """The model to start from, in float32."""
    source = find_model(options.start, "start", None, None)
    if not same_vocabulary(tokenizer, load_tokenizer(source)):
        raise SpecvizError(
            "{name} has another tokenizer: start from a model with the target's tokenizer.", "start", name=source.name
        )
    model = load_weights(source, Place(device), torch.float32)
    if options.recipe == "target" and not isinstance(model, LlamaForCausalLM):
        raise SpecvizError(
            "{name} is a {kind}: this recipe continues a Llama.", "start", name=source.name, kind=type(model).__name__
        )
    return model


if __name__ == "__main__":
    signal.signal(signal.SIGINT, INTERRUPTION)
    sys.exit(main())
