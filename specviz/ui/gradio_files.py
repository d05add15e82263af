"""The folder in which Gradio keeps files: what visitors open, and what they may download.

Gradio's default is ``gradio`` in the system's temporary folder, for all users of a machine: it belongs to whoever
served a page first, and nobody else can write there. Gradio reads GRADIO_TEMP_DIR when imported: this is first.
"""

import os
import tempfile

from specviz.records.files import no_temporary_folder

_VARIABLE = "GRADIO_TEMP_DIR"

#: Of this process, and removed with it; None if the variable names a folder.
_own: tempfile.TemporaryDirectory[str] | None = None

_named = os.environ.get(_VARIABLE)
try:
    if _named:
        os.makedirs(_named, exist_ok=True)
        tempfile.TemporaryFile(dir=_named).close()
    else:
        _own = tempfile.TemporaryDirectory(prefix="specviz-", ignore_cleanup_errors=True)
        os.environ[_VARIABLE] = _own.name
except OSError as _error:
    raise no_temporary_folder(_VARIABLE if _named else "TMPDIR", _error) from _error
