"""How the page's events are sent: in line for the models, past it, or past Gradio's queue altogether."""

from __future__ import annotations

#: Events of the page itself are no part of its API.
INTERNAL = {"api_visibility": "private"}

#: Everything that touches a model shares one place in line: a second run at once would falsify both.
DEVICE = {"concurrency_id": "device", "concurrency_limit": 1}

#: Past the line of runs, yet through Gradio's queue: a warning from outside it reaches nobody.
HEARD = {"show_progress": "hidden", "concurrency_limit": None, **INTERNAL}

#: Small changes, which no run in progress delays.
QUIET = {"queue": False, "show_progress": "hidden", **INTERNAL}
