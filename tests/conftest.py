"""What is set for all tests: their order, marks of garbage, and the fixtures of the browser."""

from __future__ import annotations

import gc
import os
import pathlib

import pytest

# Two files run at a time, and the models are small: more threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = ["browser"]

#: The files that take longest, in the order in which they begin: one that began last would run alone at the end.
LONGEST = (
    *("passes/test_static_passes", "ui/test_page", "ui/test_accessibility", "ui/test_tour", "ui/test_compare_tab"),
    *("ui/test_lossless_tab", "ui/test_background", "ui/test_why_tab", "models/test_any_size", "ui/test_gallery"),
    *("decoding/test_lossless", "ui/test_beside", "records/test_links", "views/test_tree_view", "views/test_playback"),
    "views/test_predict",
    *("drafters/test_drafters", "views/test_inspector", "decoding/test_engine", "passes/test_compiler"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first."""
    places = {name: place for place, name in enumerate(LONGEST)}
    folder = pathlib.Path(__file__).parent
    items.sort(key=lambda item: places.get(item.path.relative_to(folder).with_suffix("").as_posix(), len(places)))


def pytest_collection_finish() -> None:
    """What was imported stays, and need not be looked through for garbage again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
