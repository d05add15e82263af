"""The commands of ``python -m specviz``, one file each.

A command is `ABOUT`, `add_options(parser)` and `main(options)`, which returns the exit status. Shared: `pairs`
(the options that name a pair, and loading it), `work` (the user's own prompts), `grammars` (the option that names a
grammar's file), `output` (progress, files, and what was measured before an interruption). Torch and gradio are
imported when a command runs, so that --help answers at once.
"""
