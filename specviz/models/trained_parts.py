"""Sorts the names to draft with, a draft model and trained parts of the target, and loads the parts."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from huggingface_hub import snapshot_download
from transformers import PreTrainedModel
from transformers.modeling_layers import MtpModel

from specviz.models.gguf_files import gguf_at
from specviz.models.hub import fetched_file, in_hub_cache, is_hub_id, on_the_hub, without_page
from specviz.models.refusals import Named, explaining, quantisation_of, refusing_out_of_memory
from specviz.models.sources import quietly
from specviz.models.weights import files_of, stored_dtypes
from specviz.parts.formats import FORMATS, recognise
from specviz.parts.gguf_file import is_gguf
from specviz.parts.mtp import MtpModules, with_modules
from specviz.parts.part_files import PICKLES, PartFiles
from specviz.parts.reading import TrainedPart
from specviz.passes.devices import home_of, is_spread
from specviz.records.errors import SpecvizError, first_line

#: A name that is given: a folder, a file, or a Hub id.
Name = str | os.PathLike[str]

#: The drafters that trained parts have, and what else drafts.
_DRAFTERS = tuple(sorted({form.part.kind for form in FORMATS if form.part is not None}))
_MODEL = "draft_model"


def sort_drafts(
    named: Sequence[Name], revision: str | None, token: str | None, whole: bool = True
) -> tuple[Name | None, dict[str, pathlib.Path]]:
    """The draft model among what was named, and the folders of trained parts by their drafters.

    Parts on the Hub are fetched, or if `whole` is false only their configurations. Raises SpecvizError (field
    ``draft``) for two that draft in the same way, and for parts in formats that are not read.
    """
    sorted_names: dict[str, Name] = {}
    folders: dict[str, pathlib.Path] = {}
    for name in named:
        folder = _folder(name, revision, token, whole)
        kind = _kind(PartFiles.at(folder)) or _MODEL
        if kind in sorted_names:
            raise SpecvizError(
                "{first} and {second} draft in the same way ({kind}): name one of them.",
                "draft",
                first=str(sorted_names[kind]),
                second=str(name),
                kind=kind,
            )
        sorted_names[kind] = name
        if kind in _DRAFTERS:
            folders[kind] = folder
    return sorted_names.get(_MODEL), folders


def _folder(named: Name, revision: str | None, token: str | None, whole: bool = True) -> pathlib.Path:
    """The folder of that name; of one on the Hub, its place in the cache, once its configuration is there, and the
    weights too unless it is a model.

    Raises SpecvizError (field ``draft``) for what the Hub refuses, and, before any weights are fetched, for parts whose
    configuration says that they are not read.
    """
    named = without_page(named, "draft")
    name = os.fspath(named).strip()
    if is_hub_id(named) and name.endswith(".gguf"):
        return fetched_file(name, "draft", revision, token)
    if not is_hub_id(named):
        path = pathlib.Path(os.path.expanduser(name))
        folder = in_hub_cache(path.resolve(), "draft")[0] if path.is_dir() else path
        return gguf_at(folder, "draft") or folder
    options, model = on_the_hub(name, "draft", revision, token), Named("draft", name)

    def fetched(*patterns: str) -> PartFiles:
        with explaining("configuration", model):
            # Not what lies in folders there: other formats, and the states of a training.
            folder = snapshot_download(name, allow_patterns=patterns, ignore_patterns="*/*", **options)
        return PartFiles.at(pathlib.Path(folder))

    files = fetched("config.json")
    if not whole and _kind(files) is None and _is_headlike(files.settings):
        raise model.complaint("How much memory {name} needs is known once it has been downloaded.")
    if whole and (_kind(files) is not None or _is_headlike(files.settings)):
        files = fetched("*.json", "*.safetensors")
        files = files if files.shapes else fetched("*.json", *PICKLES)
        if not files.shapes and "local_files_only" in options:
            raise model.complaint(
                "{name} is not on this machine, and the Hub cannot be reached: check the network or name a folder."
            )
    return files.folder


def _is_headlike(settings: Mapping[str, Any]) -> bool:
    """Whether a configuration is one of a single layer, or of nothing that transformers knows: so are those of heads,
    whatever they call themselves."""
    return bool(settings) and (settings.get("num_hidden_layers") == 1 or "model_type" not in settings)


def _kind(files: PartFiles) -> str | None:
    """The drafter of the part in a folder; None for a model. Raises SpecvizError (field ``draft``) for parts that are
    not read."""
    if (kind := files.settings.get("kind")) in _DRAFTERS:
        raise files.complaint(
            "{folder} holds a part that an earlier version trained, in a format of its own: train one anew with python "
            "-m specviz.training {kind}.",
            kind=kind,
        )
    form = recognise(files)
    if files.flaw is not None and (form is not None or _is_headlike(files.settings)):
        raise files.flaw
    if form is None:
        return None
    if (template := form.refusal) is not None:
        raise files.complaint(template)
    if form.drafter is None:
        raise files.complaint(
            "{folder} holds a trained part of the kind {method}, which is not supported: name another part of "
            "this target, or a draft model.",
            method=form.name,
        )
    return form.drafter


def load_parts(
    target: PreTrainedModel, home: pathlib.Path, named: Mapping[str, pathlib.Path]
) -> tuple[dict[str, TrainedPart], dict[str, SpecvizError]]:
    """The trained parts by their drafters, and why any in the target's folder is unusable.

    home: the target's folder. named: folders of parts that are named, which take the places of those there; if one of
    them is unusable, that is an error (field ``draft``).
    """
    parts, flaws = {}, {}
    for name in _DRAFTERS:
        folder = named.get(name, home / name)
        try:
            if name in named or (folder / "config.json").is_file():
                parts[name] = load_part(name, folder, target)
            elif name == MtpModules.kind and (modules := load_mtp_modules(target)):
                parts[name] = modules
        except SpecvizError as error:
            if name in named:
                raise error.at("draft") from error
            # A copy: the error itself holds on to the frames it passed through.
            flaws[name] = error.at("drafter")
    return parts, flaws


def load_part(drafter: str, folder: pathlib.Path, target: PreTrainedModel) -> TrainedPart:
    """The part in `folder` that this drafter reads, in evaluation mode, on the target's device and in its dtype.

    Raises SpecvizError (field ``draft``) if it is none, is damaged, or was made for another target.
    """
    return _load(drafter, PartFiles.at(folder), target)


def _load(drafter: str, files: PartFiles, target: PreTrainedModel) -> TrainedPart:
    if (kind := _kind(files)) not in (None, drafter):
        raise files.complaint("The part in {folder} drafts with {kind}: give its folder that name.", kind=kind)
    form = recognise(files)
    if form is None or form.part is None:
        raise files.complaint("{folder} holds no trained part in a format that is known here.")
    part = form.part
    if part is MtpModules:
        _refuse_elsewhere(target)
    if not files.settings or not files.shapes:
        raise files.complaint(
            "The {method} part in {folder} is incomplete: it needs its weights and a config.json that is a JSON "
            "object. Copy them again.",
            method=form.name,
        )

    def too_large() -> SpecvizError:
        return files.complaint(
            "The {method} part in {folder} does not fit into the memory that the target leaves: choose a smaller part.",
            method=form.name,
        )

    try:
        with refusing_out_of_memory(too_large):
            return part.load(files, target)
    except SpecvizError:
        raise
    except Exception as error:
        # A configuration can lead transformers and torch astray in any way.
        raise files.complaint(
            "The configuration in {folder} does not describe a {method} part: {reason}.",
            method=form.name,
            reason=first_line(error),
        ) from error


#: Which of a checkpoint's files holds which tensor.
INDEX = "model.safetensors.index.json"

#: Of families whose configuration in transformers says nothing of modules: how the patterns of names that it leaves
#: unread begin, and some of those of the one module of Qwen3-Next, Qwen3.5 and later, a layer with full attention.
_MODULES = ("mtp", "^mtp")
_ONE_MODULE = {"mtp.fc.weight", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight"}


def load_mtp_modules(target: PreTrainedModel) -> TrainedPart | None:
    """The modules in this target's checkpoint, in evaluation mode, on its device and in its dtype; None if it has none,
    or if transformers does not know those of its family.

    Raises SpecvizError (field ``drafter``) if there are some that cannot be read here.
    """
    config = target.config.get_text_config()
    first, count = config.num_hidden_layers, getattr(config, "num_mtp_layers", None)
    undescribed = count is None and any(
        pattern.startswith(_MODULES) for pattern in target._keys_to_ignore_on_load_unexpected or ()
    )
    folder = files_of(target) if count or undescribed else None
    if folder is None:
        return None
    if is_gguf(folder):
        files = PartFiles.at(folder, beside_model=True)
        return _load(MtpModules.kind, files, target) if files.shapes else None
    names = stored_dtypes(target).keys()
    if undescribed and (missing := sorted(_ONE_MODULE - names)):
        # Qwen3.8-Flash-Next's module has two projections in the place of one.
        if len(missing) < len(_ONE_MODULE) and not any(name.startswith("mtp.fc_") for name in names):
            raise SpecvizError(
                "The MTP modules of {name} lack {tensor}: a shard of the checkpoint is damaged or missing. Copy it "
                "again.",
                "drafter",
                name=folder.name,
                tensor=missing[0],
            )
        if any(name.startswith("mtp.") for name in names):
            raise SpecvizError(
                "transformers does not read the MTP modules of {name} ({kind}), so they draft nothing here: choose "
                "another drafter.",
                "drafter",
                name=folder.name,
                kind=config.model_type,
            )
        return None
    # A twin that says where the files are, and what their weights are called: of families that count the modules as
    # further layers, transformers knows the numbers of the published sizes alone.
    source = with_modules(target, count := count or 1)
    source.config.name_or_path = str(folder)
    further = [rf"(^|\.)layers\.{layer}\." for layer in range(first, first + count)]
    source._keys_to_ignore_on_load_unexpected = [*(target._keys_to_ignore_on_load_unexpected or ()), *further]
    if not any(map(MtpModel.get_mtp_weights_regex(source).search, names)):
        return None
    _refuse_elsewhere(target)
    try:
        with quietly():
            # To the CPU: transformers reads weights in threads of its own, where a lent GPU is not there.
            model = MtpModel.from_pretrained(source, device_map={"": torch.device("cpu")})
    except (RuntimeError, ValueError, KeyError, AttributeError) as error:
        if "weights are missing" in str(error) and (folder / INDEX).is_file():
            raise SpecvizError(
                "The MTP modules in {folder} are not all in the files that its {index} names: fetch the whole "
                "checkpoint again, index and shards.",
                "drafter",
                folder=folder,
                index=INDEX,
            ) from error
        raise SpecvizError(
            "The MTP modules in {folder} cannot be read: {reason}.",
            "drafter",
            folder=folder,
            reason=first_line(error),
        ) from error
    return MtpModules(model.eval().requires_grad_(False).to(home_of(target)), target)


def _refuse_elsewhere(target: PreTrainedModel) -> None:
    """Raises SpecvizError (field ``drafter``) for targets whose modules would have to be quantised, or spread."""
    if quantisation_of(target.config) is not None or is_spread(target):
        raise SpecvizError(
            "The MTP modules of a quantised target, or of a target on several devices, are not supported: choose "
            "another drafter.",
            "drafter",
        )
