"""How the page's events are sent: through Gradio's queue, or past it."""

from __future__ import annotations

#: Events of the page itself are no part of its API.
INTERNAL = {"api_visibility": "private"}

#: Gradio shows progress nowhere: the page's own words do. Hidden alone is not enough, because each output would count
#: seconds in every frame all the same, and go on doing so if it is taken off the page meanwhile.
UNSEEN = {"show_progress": "hidden", "show_progress_on": []}

#: Through Gradio's queue, which holds nobody back: what touches a model waits in a line of our own (`line.Line`).
HEARD = {"concurrency_limit": None, **UNSEEN, **INTERNAL}

#: Small changes, past that queue: a warning from there reaches nobody.
QUIET = {"queue": False, **UNSEEN, **INTERNAL}
