"""The Hub's names for a model: the address of its page, its id, its folder in the cache; asking the Hub for it."""

import os
import pathlib
import re
from typing import Any

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub import errors as hub

from specviz.models.refusals import Named, explaining, hub_refusal
from specviz.records.errors import SpecvizError, quoted, require_text

_TIMEOUT_SECONDS = 15.0

#: A model's page on the Hub, or one of its files, as it is copied from a browser or written for another program.
_PAGE = re.compile(
    r"(?:https?://(?:www\.)?(?:huggingface\.co|hf\.co)/|hf\.co/|huggingface\.co/|hf://)"
    r"(?P<model>[\w.-]+/[\w.-]+)(?:/tree/main|/(?:blob|resolve)/main/(?P<file>[\w./-]+))?/?(?:\?download=true)?$"
)

#: A model's name with a quantisation, as llama.cpp and Ollama take it.
_WITH_QUANTISATION = re.compile(r"(?:hf\.co/|huggingface\.co/)?(?P<model>[\w.-]+/[\w.-]+):[\w.-]+$")

#: Windows' error for a name that no file can have, such as an address.
_NO_NAME = 123

#: How the Hub's cache calls a repository's folder: ``models--org--name``.
_REPOSITORY = "models--"


def without_page(named: str | os.PathLike[str], field: str) -> str | os.PathLike[str]:
    """The Hub id in the address of a model's page, and the file's in that of a GGUF file; any other name as it is.

    Raises SpecvizError (this `field`) for a name that only other programs understand, and for a path that cannot
    be opened: too long, or in a folder that is closed to this user.
    """
    if not isinstance(named, (str, os.PathLike)):
        raise SpecvizError("{value} names no model: give a folder, a file or a Hub id.", field, value=quoted(named))
    name = os.fspath(named).strip()
    _refuse_unseen(name, field)
    if (wanted := _WITH_QUANTISATION.match(name)) and not pathlib.Path(name).exists():
        raise SpecvizError(
            "{name} names a quantisation, as llama.cpp and Ollama do: name the file instead, {model}/FILE.gguf.",
            field,
            name=name,
            model=wanted["model"],
        )
    page = _PAGE.match(name)
    if page is None:
        return named
    file = page["file"] or ""
    return f"{page['model']}/{file}" if file.endswith(".gguf") else page["model"]


def _refuse_unseen(name: str, field: str) -> None:
    try:
        os.stat(os.path.expanduser(name))
    except (FileNotFoundError, NotADirectoryError):
        return  # it may be a Hub id, and those who look for a path say what is missing
    except (OSError, ValueError) as error:
        if getattr(error, "winerror", None) == _NO_NAME:
            return
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecvizError("{name} cannot be opened: {reason}.", field, name=quoted(name), reason=reason) from error


def is_hub_id(named: str | os.PathLike[str]) -> bool:
    """True if a name is not a path on this machine and can be one of the Hub's: ``model``, ``org/model``, or
    ``org/model/file.gguf``."""
    name = os.fspath(named).strip()
    path = pathlib.Path(os.path.expanduser(name))
    if path.exists() or path.is_absolute() or isinstance(named, os.PathLike) or name.startswith((".", "~")):
        return False
    return name.count("/") >= 2 if name.endswith(".gguf") else name.count("/") <= 1


def token_given(token: str | None = None) -> str | None:
    """The token that the Hub is asked with: this one, else HF_TOKEN; None without any. Raises SpecvizError (field
    ``token``) for what no request can hold."""
    token = token or os.environ.get("HF_TOKEN") or ""
    require_text("token", token)
    token = token.strip()
    if not token.isascii() or not token.isprintable():
        raise SpecvizError(
            "The Hub's token consists of letters, digits and signs: copy it again, or check the environment variable "
            "HF_TOKEN.",
            "token",
        )
    return token or None


def fetched_file(name: str, field: str, revision: str | None, token: str | None) -> pathlib.Path:
    """The file of a repository on the Hub, in the cache: ``org/model/file.gguf``."""
    owner, model, file = name.split("/", 2)
    with explaining("configuration", Named(field, f"{owner}/{model}")):
        return pathlib.Path(hf_hub_download(f"{owner}/{model}", file, revision=revision, token=token))


def on_the_hub(name: str, field: str, revision: str | None, token: str | None) -> dict[str, Any]:
    """The options with which `from_pretrained` reads all files of one commit, or only cached ones.

    Asking the Hub once, up front, gets its reason for a refusal at once; a download retries for half a minute.
    """
    options = {"revision": revision, "token": token}
    try:
        info = HfApi(token=token).model_info(name, revision=revision, timeout=_TIMEOUT_SECONDS)
    except hub.HfHubHTTPError as error:
        refusal = hub_refusal(Named(field, name), error)
        assert refusal is not None, "there is one for each error of this kind"
        raise refusal from error
    except hub.HFValidationError as error:
        raise SpecvizError(
            "{name} is neither a folder here nor a Hub id like Qwen/Qwen3-0.6B.", field, name=quoted(name)
        ) from error
    except (hub.HTTPError, OSError):  # offline, by choice or not: an earlier download may be cached
        return options | {"local_files_only": True}
    return options | {"revision": info.sha or revision}


def in_hub_cache(path: pathlib.Path, field: str) -> tuple[pathlib.Path, str]:
    """The folder that holds a model's files, and its name: `path` itself, unless that is a repository in the Hub's
    cache.

    Raises SpecvizError (this `field`) for a repository that holds no version, or several and none is the main one.
    """
    repository = next((folder for folder in (path, *path.parents[:2]) if folder.name.startswith(_REPOSITORY)), None)
    if repository is None:
        return path, path.name
    name = repository.name.removeprefix(_REPOSITORY).replace("--", "/")
    if path.parent.name == "snapshots":
        return path, name
    versions = [version for version in (repository / "snapshots").glob("*") if version.is_dir()]
    main = repository / "refs" / "main"
    current = main.read_text("utf-8").strip() if main.is_file() else ""
    meant = [version for version in versions if version.name == current] or versions
    if len(meant) != 1:
        raise SpecvizError(
            "The Hub's cache keeps {count} versions of {name} in {folder}: name one of the folders in its snapshots.",
            field,
            folder=path,
            name=name,
            count=len(meant),
        )
    return meant[0], name
