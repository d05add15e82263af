"""Where to find the files that come with the program."""

import pathlib

ASSETS = pathlib.Path(__file__).resolve().parents[2] / "assets"

#: What the browser runs: a folder for each element of the page.
WEB = ASSETS / "web"

#: The embedded pair: ``target``, ``draft`` and the target's trained parts.
EMBEDDED = ASSETS / "models"

#: Lessons ready to teach, a folder for each language.
LESSONS = ASSETS / "lessons"

#: What other sites show of a link to the page.
PREVIEW = ASSETS / "screenshots" / "present-light.png"
