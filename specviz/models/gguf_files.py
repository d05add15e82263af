"""GGUF files, which llama.cpp and Ollama run: finding one, reading its header, and sentences for what is wrong.

transformers unpacks their weights; for that it needs the package `gguf`, which is loaded when there is a file to read.
"""

import contextlib
import copy
import functools
import pathlib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, PreTrainedConfig
from transformers.integrations.gguf import read_gguf_metadata
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specviz.models.refusals import Named, explaining
from specviz.parts.gguf_file import GgufFile, is_gguf, reader_is_missing
from specviz.records.errors import SpecvizError, first_line

#: By the name of each sampling setting in generation_config.json, its key in the header of a GGUF file.
GGUF_SAMPLING = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
}

#: Part of a model in several GGUF files, each with a header of its own.
_SPLIT = re.compile(r"-\d{5}-of-(?!00001)\d{5}\.gguf$")

#: Part of a file that was cut up.
_PIECE = re.compile(r"\.gguf\.(part[-_]?)?(\d+|[a-z]{2})$")


#: How files store weights in no fewer bits than models run in.
_FULL_PRECISION = ("F32", "F16", "BF16")


@contextlib.contextmanager
def read_once() -> Iterator[None]:
    """Within it, transformers reads the header of each GGUF file once, and makes each table of tensors' names once.

    It reads the header for the configuration, for the tokenizer and for the weights, a second for every 20,000 tokens
    each time, and makes the table anew for each module: three quarters of what loading a model of 135M takes.
    """
    if reader_is_missing():
        yield
        return
    import gguf

    class Reader(gguf.gguf_reader.GGUFReader):
        """Keeps the file as an array like any other: a slice of a mapped one takes four times as long, and each token
        is several."""

        @property
        def data(self) -> np.ndarray:
            return self._data

        @data.setter
        def data(self, mapped: np.memmap) -> None:
            self._data = mapped.view(np.ndarray)

    gguf.GGUFReader = functools.cache(Reader)
    gguf.get_tensor_name_map = functools.cache(gguf.tensor_mapping.get_tensor_name_map)
    try:
        yield
    finally:
        # Not what was there before: another model may be being read, in which case that was its own.
        gguf.GGUFReader = gguf.gguf_reader.GGUFReader
        gguf.get_tensor_name_map = gguf.tensor_mapping.get_tensor_name_map


def in_few_bits(stored: str | None) -> bool:
    """True if weights that are stored so (`read_header`) are codes of few bits. None: not in a GGUF file."""
    return stored is not None and stored not in _FULL_PRECISION


def gguf_at(path: pathlib.Path, field: str) -> pathlib.Path | None:
    """The GGUF file at `path`, or the only one in that folder; None if there is none, or it is a folder in
    transformers' format.

    Raises SpecvizError (this `field`) for several files, and for one that is not whole.
    """
    files = [path] if path.is_file() else []
    if path.is_dir() and not (path / "config.json").is_file():
        inside = sorted(file for file in path.iterdir() if file.is_file())
        files = [file for file in inside if file.suffix == ".gguf"] or [
            file for file in inside if _PIECE.search(file.name)
        ]
    if not files:
        return None
    model = Named(field, files[0].name)
    if _PIECE.search(model.name):
        raise model.complaint(
            "{name} is a piece of a GGUF file: put the pieces together (cat {whole}.* > {whole}) and name the result.",
            whole=model.name.rpartition(".")[0],
        )
    if _SPLIT.search(model.name):
        raise model.complaint(
            "{name} is one part of a split GGUF file, but only whole files can be read: join the parts with "
            "llama-gguf-split --merge and name the result."
        )
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:6]) + (", …" if len(files) > 6 else "")
        raise SpecvizError("{folder} holds several GGUF files: name one of {names}.", field, folder=path, names=names)
    begins = is_gguf(files[0])
    if files[0].suffix == ".gguf" and not begins:
        raise model.complaint(
            "{name} does not begin like a GGUF file: download it again, or fetch it with git lfs pull."
        )
    return files[0].absolute() if begins else None


def read_header(file: pathlib.Path, field: str) -> tuple[str, str, PreTrainedConfig, dict[str, Any]]:
    """A name for people, how the weights are stored in llama.cpp's words (``Q4_K_M``), the model's configuration, and
    the sampling settings that it recommends.

    Raises SpecvizError (this `field`) if the file is damaged, cannot be unpacked to the model that it holds, or the
    package that reads it is missing.
    """
    model = Named(field, file.name)
    if reader_is_missing():
        raise model.complaint(
            "{name} is a GGUF file, but the package that reads GGUF files is missing: pip install gguf."
        )
    from gguf import LlamaFileType

    with explaining_gguf(model):
        header, tensors = read_gguf_metadata(str(file))
        config = AutoConfig.from_pretrained(file.parent, gguf_file=str(file), local_files_only=True)
        _stretch_positions(model, config, file, header, tensors)
    turn_end = header.get("tokenizer.ggml.eot_token_id", config.eos_token_id)
    if turn_end != config.eos_token_id:
        # A chat's turns end there. A checkpoint in transformers' format has this in generation_config.json.
        config.eos_token_id = [config.eos_token_id, turn_end]
    kinds = {kind.value: kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in LlamaFileType}
    # Ollama's files are called by their hash.
    name = file.stem if file.suffix == ".gguf" else header.get("general.name") or file.name
    sampling = {name: header[key] for name, key in GGUF_SAMPLING.items() if key in header}
    # Its 0.95 is one in float32.
    sampling = {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in sampling.items()}
    return name, kinds.get(header.get("general.file_type"), "GGUF"), config, sampling


def _stretch_positions(
    model: Named, config: PreTrainedConfig, file: pathlib.Path, header: Mapping[str, Any], tensors: Collection[str]
) -> None:
    """Stretches rotary positions for long contexts, which transformers leaves out where it reads a GGUF file.

    Raises SpecvizError for ways other than Llama 3.1's and a single factor: the model would write another text.
    """
    kind = header["general.architecture"]
    way, factor = (header.get(f"{kind}.rope.scaling.{key}") for key in ("type", "factor"))
    tables = [name for name in tensors if name.startswith("rope_f")]
    if kind == "gpt-oss" or (way in (None, "none") and not tables):  # transformers reads the first
        return
    scaling = {"rope_type": "linear", "factor": factor} if way == "linear" and not tables else None
    if tables == ["rope_freqs.weight"]:
        scaling = _as_in_llama3(config, file)
    if scaling is None:
        raise model.complaint(
            "{name} scales its positions in a way ({kind}) that is lost when a GGUF file is unpacked: name the "
            "model in transformers' format.",
            kind=way or tables[0],
        )
    # Of two kinds of layer those with windows see nothing that lies far back.
    config.rope_parameters.get("full_attention", config.rope_parameters).update(scaling)


def _as_in_llama3(config: PreTrainedConfig, file: pathlib.Path) -> dict[str, Any] | None:
    """Llama 3.1's settings for the factors in this file; None if the factors do not follow from such settings."""
    factors = GgufFile(file).tensor("rope_freqs.weight")
    scaling = {"rope_type": "llama3", "factor": float(factors.max()), "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 8192
    trial = copy.deepcopy(config)
    trial.rope_parameters |= scaling
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](trial)
    plain = config.rope_parameters["rope_theta"] ** (-torch.arange(len(factors)) / len(factors))
    return scaling if torch.allclose(plain / frequencies, factors, rtol=1e-3) else None


def explaining_gguf(model: Named) -> contextlib.AbstractContextManager[None]:
    """Turns the libraries' errors over a damaged file, or one of an unknown kind, into a SpecvizError.

    A header that was cut off or overwritten leads them astray in many ways. Out of memory passes through.
    """
    return explaining("gguf", model, about=lambda error: _about_gguf(model, error))


def _about_gguf(model: Named, error: BaseException) -> SpecvizError:
    if kind := re.search(r"architecture ([\w.-]+) is not supported|Unknown gguf model_type: ([\w.-]+)", str(error)):
        return model.complaint(
            "{name} is a GGUF file of the architecture {kind}, which transformers cannot unpack: name the model "
            "in transformers' format.",
            kind=kind[1] or kind[2],
        )
    return model.complaint(
        "The GGUF file {name} is damaged or incomplete: download it again ({reason}).", reason=first_line(error)
    )
