"""Prompts that show something on the embedded pair: familiar prose, code, a text that repeats, a hard one."""

from __future__ import annotations

from dataclasses import dataclass

#: A turn of a conversation: its ``role`` and its ``content``.
Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Preset:
    """A prompt with a name."""

    name: str
    prompt: str
    domain: str = ""  # under which results are told, for prompts that were read from a file
    messages: tuple[Message, ...] = ()  # a conversation in the prompt's place, for the chat template


#: At which the page starts: as the Llama 3 models are used by default (their generation_config.json).
TEMPERATURE = 0.6

PRESETS = (
    # Ordinary prose: the draft model is right more often than not.
    Preset("story", "Once upon a time there was a little girl who lived in a"),
    Preset("story_king", "The King had three sons, and the youngest of them was"),
    Preset("story_sea", "The captain looked at the sea for a long while. At last he said,"),
    # Code: names come back, so copying from the text helps.
    Preset("python", "def read_lines(path):\n    with open(path) as file:\n        for line in file:\n"),
    # The text repeats itself: prompt lookup copies whole phrases for free.
    Preset(
        "repeats",
        "The old man had a cow, and the cow said moo. The old man had a dog, and the dog said bow-wow. "
        "The old man had a cat, and the cat said mew. The old man had a cow, and the cow said moo. "
        "The old man had a dog, and the dog said",
    ),
    # A regular expression: about half of the sampled guesses are rejected, and speculation hardly pays.
    Preset(
        "hard",
        "    (r'^\\s*(?P<key>[^=]+?)\\s*=\\s*(?P<val>.*)$', re.VERBOSE | re.M),\n    (",
    ),
)

#: The presets that are prose; speed over "the stories" is measured on these.
STORIES = tuple(preset for preset in PRESETS if preset.name.startswith("story"))
