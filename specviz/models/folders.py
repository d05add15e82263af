"""What lies in a folder that was named as a model: transformers' format, or what else, and the way from there."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence

from specviz.records.errors import SpecvizError

#: How the Hub's cache calls a repository's folder: ``models--org--name``.
_REPOSITORY = "models--"

#: The beginning of the few lines that stand for a large file in git until it is fetched.
_POINTER = b"version https://git-lfs"

#: Models for other runtimes, and models as those who trained them keep them.
_EXPORTED = ("*.onnx", "onnx/*.onnx", "openvino_model*.xml", "*.mlmodelc", "*.mlpackage", "*.engine", "*.tflite")
_ORIGINAL = ("params.json", "consolidated*", "*.nemo")

#: Weights that transformers reads, and those that only another library does.
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_ELSEWHERE = ("tf_model*.h5", "flax_model*.msgpack", *_EXPORTED)


def in_hub_cache(path: pathlib.Path, field: str) -> tuple[pathlib.Path, str]:
    """The folder that holds a model's files, and its name: `path` itself, unless that is a repository in the Hub's
    cache.

    Raises SpecvizError (this `field`) for a repository of which no version is there, or none is the one meant.
    """
    repository = next((one for one in (path, *path.parents[:2]) if one.name.startswith(_REPOSITORY)), None)
    if repository is None:
        return path, path.name
    name = repository.name.removeprefix(_REPOSITORY).replace("--", "/")
    if path.parent.name == "snapshots":
        return path, name
    versions = [one for one in (repository / "snapshots").glob("*") if one.is_dir()]
    main = repository / "refs" / "main"
    meant = [one for one in versions if main.is_file() and one.name == main.read_text().strip()] or versions
    if len(meant) != 1:
        raise SpecvizError(
            "{folder} is where the Hub's cache keeps {name}, and {count} versions of it are there: name one of the "
            "folders in its snapshots.",
            field,
            folder=path,
            name=name,
            count=len(meant),
        )
    return meant[0], name


def refuse_other_formats(path: pathlib.Path, name: str, field: str) -> None:
    """Raises SpecvizError (this `field`) unless the folder at `path`, called `name`, is a model in transformers'
    format, and its weights are there."""
    if (path / "adapter_config.json").is_file():
        raise SpecvizError(
            "The folder {name} holds an adapter (adapter_config.json): merge it into its model (peft's "
            "merge_and_unload), save that, and name the result.",
            field,
            name=name,
        )
    if not (path / "config.json").is_file():
        raise _no_model(path, name, field)
    weights = list(_found(path, _WEIGHTS))
    for file in weights:
        if not_fetched := why_not_fetched(file, name, field):
            raise not_fetched
    other = next(_found(path, _ELSEWHERE), None)
    if other is not None and not weights:
        raise SpecvizError(
            "{name} has weights for another library only ({file}): save the model in safetensors, or name another copy "
            "of it.",
            field,
            name=name,
            file=other.name,
        )


def _no_model(path: pathlib.Path, name: str, field: str) -> SpecvizError:
    """Why this folder without a config.json is no model, by what else lies there."""
    below = next(_found(path, ["*/config.json"]), None)
    if below is not None:
        return SpecvizError(
            "The folder {name} is no model itself: name one of those in it, such as {folder}.",
            field,
            name=name,
            folder=below.parent,
        )
    exported, original, weights = (next(_found(path, kind), None) for kind in (_EXPORTED, _ORIGINAL, _WEIGHTS))
    if exported is not None:
        return SpecvizError(
            "{name} is exported for another program ({file}): name the model that it was made from.",
            field,
            name=name,
            file=exported.name,
        )
    if original is not None:
        return SpecvizError(
            "{name} is in its publisher's own format ({file}): name a copy in transformers' format, with config.json.",
            field,
            name=name,
            file=original.name,
        )
    if weights is not None:
        return SpecvizError(
            "{name} holds weights ({file}) without their config.json: copy it and the tokenizer's files beside them.",
            field,
            name=name,
            file=weights.name,
        )
    return SpecvizError(
        "The folder {name} is not a model in transformers' format: it has no config.json.", field, name=name
    )


def _found(path: pathlib.Path, patterns: Sequence[str]) -> Iterator[pathlib.Path]:
    for pattern in patterns:
        yield from sorted(path.glob(pattern))


def why_not_fetched(file: pathlib.Path, name: str, field: str) -> SpecvizError | None:
    """Why a file of the model called `name` cannot be read yet; None unless git has left only a pointer to it there."""
    with file.open("rb") as opened:
        if opened.read(len(_POINTER)) != _POINTER:
            return None
    return SpecvizError(
        "Of {file} in {name} only the pointer of Git LFS is there: fetch the file itself with git lfs pull.",
        field,
        file=file.name,
        name=name,
    )
