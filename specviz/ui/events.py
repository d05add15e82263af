"""How the page's events are sent: through Gradio's queue, or past it."""

from __future__ import annotations

#: Events of the page itself are no part of its API.
INTERNAL = {"api_visibility": "private"}

#: Through Gradio's queue, which holds nobody back: what touches a model waits in a line of our own (`line.Line`).
HEARD = {"show_progress": "hidden", "show_progress_on": [], "concurrency_limit": None, **INTERNAL}

#: Small changes, past that queue: a warning from there reaches nobody.
QUIET = {"queue": False, "show_progress": "hidden", "show_progress_on": [], **INTERNAL}
