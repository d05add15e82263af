"""The live page without a server: a folder for any static host, whose visitors run the embedded pair themselves.

Everything that runs lies in assets/web/static; here it is put together with weights, texts and recorded runs.
"""

import json
import pathlib
import shutil
from collections.abc import Iterable
from typing import Any

from specviz.records.assets import ASSETS, EMBEDDED, PREVIEW, WEB
from specviz.records.errors import SpecvizError
from specviz.records.links import share
from specviz.records.prompts import PRESETS
from specviz.records.recordings import RECORDINGS, Recording
from specviz.records.words import LANGUAGES, said, words
from specviz.views.charts import Trail
from specviz.views.labels import parameters
from specviz.views.quiz import quiz_message
from specviz.views.run_messages import end_message, headline, opening, rounds_message, trace_message

#: The folders of assets/web that the page imports.
FOLDERS = ("static", "shared", "moment", "run", "charts", "gallery", "quiz")
#: With it the folder is a static Space as it stands.
README = """---
title: specviz
sdk: static
license: apache-2.0
---
"""

#: They come in all languages in one file, site.json.
_TEXTS = shutil.ignore_patterns("*.json")


def write_site(folder: pathlib.Path) -> int:
    """Writes the page to `folder`, over an earlier one; returns its size in bytes.

    Raises SpecvizError, field ``folder``, where something else is there or nothing can be written.
    """
    if folder.exists() and not (folder / "site.json").exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpecvizError(
            "{path} is not empty: name a new folder, or one that this wrote before.", "folder", path=folder
        )
    try:
        return _write(folder)
    except OSError as error:
        raise SpecvizError(
            "{path} cannot be written ({reason}): name a folder that you may write to.",
            "folder",
            path=folder,
            reason=error.strerror,
        ) from error


def _write(folder: pathlib.Path) -> int:
    for name in FOLDERS:
        shutil.copytree(WEB / name, folder / "web" / name, ignore=_TEXTS, dirs_exist_ok=True)
    shutil.copy(WEB / "colours.css", folder / "web")
    shutil.move(folder / "web" / "static" / "index.html", folder / "index.html")
    for role in ("target", "draft"):
        shutil.copytree(EMBEDDED / role, folder / "models" / role, dirs_exist_ok=True)
    shutil.copy(ASSETS.parent / "LICENSE", folder)
    shutil.copy(PREVIEW, folder / "preview.png")
    (folder / "README.md").write_text(README, encoding="utf-8")
    (folder / "runs").mkdir(exist_ok=True)
    recorded = {recording.name: _recorded(recording) for recording in RECORDINGS}
    for name, message in recorded.items():
        (folder / "runs" / f"{name}.json").write_text(message, encoding="utf-8")
    (folder / "site.json").write_text(json.dumps(_site(recorded.values()), ensure_ascii=False), encoding="utf-8")
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _recorded(recording: Recording) -> str:
    """The message that shows a recorded run."""
    run = recording.load()
    trail = Trail.of(run.rounds)
    figures, title = headline(trail, run.measured), said(f"traces.{recording.name}_title")
    parts = [
        opening(recording.name, run, recorded=said("traces.recorded", title=title)),
        rounds_message(recording.name, run.rounds, run.vocabulary, figures=figures),
        end_message(
            recording.name, total=len(run.rounds), reason=said(f"traces.{recording.name}_about"), figures=figures
        ),
    ]
    return trace_message(parts, share=share(run) | {"recording": recording.name}, charts=trail.charts())


def _site(recorded: Iterable[str]) -> dict[str, Any]:
    """What page.js knows of the folder: texts, prompts, recorded runs, and where the models lie."""
    scripts = [path.read_text(encoding="utf-8") for name in FOLDERS for path in (WEB / name).rglob("*.js")]
    pair = RECORDINGS[0].load().pair
    weights = {role: sorted((EMBEDDED / role).glob("*.safetensors")) for role in ("target", "draft")}
    return {
        "languages": {
            code: {"name": name, "words": words(code).texts_in(*scripts, *recorded)} for code, name in LANGUAGES.items()
        },
        "presets": {preset.name: preset.prompt for preset in PRESETS},
        "recordings": [recording.name for recording in RECORDINGS],
        "quiz": quiz_message() | {"alone": True},
        "models": {
            "tokenizer": "models/target/tokenizer.json",
            **{
                role: {
                    "config": f"models/{role}/config.json",
                    "files": [f"models/{role}/{path.name}" for path in paths],
                }
                for role, paths in weights.items()
            },
        },
        "bytes": sum(path.stat().st_size for paths in weights.values() for path in paths),
        "pair": {
            "name": pair.name,
            "target": parameters(pair.target_parameters),
            "draft": parameters(pair.draft_parameters or 0),
            "device": "WebAssembly",
            "dtype": "float32",
        },
    }
