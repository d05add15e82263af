"""Modules of assets/web as one script, for a file that no server stands behind: browsers import nothing from a folder.

Each module becomes a function that returns what it exports, in an order in which all it imports is there; no two import
each other in a circle (a test). It reads the forms in which assets/web is written, and refuses others.
"""

from __future__ import annotations

import functools
import json
import posixpath
import re

from specviz.records.assets import ASSETS

WEB = ASSETS / "web"

_IMPORT = re.compile(r'^import (?:(\{[^}]*\}) from )?"(\.[^"]+)";$', re.M)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.M)
_FOREIGN = re.compile(r"^(?:import|export)\b|</script|<!--", re.M)

#: What modules fetch are their style sheets, which lie in the script: `fetch` is theirs, not the browser's.
_HEAD = """const modules = {}, styles = %s;
const fetch = async (url) => new Response(styles[url.pathname.slice(1)]);
"""
_MODULE = """
modules["%s"] = await (async () => {
%s
return { %s };
})();
"""


@functools.cache
def bundle(entry: str) -> str:
    """A script of type ``module`` that does what the module `entry` does, and fetches nothing.

    Raises ValueError for a module in a form that it does not read.
    """
    modules: dict[str, str] = {}
    _add(entry, modules)
    folders = {posixpath.dirname(name) for name in modules}
    sheets = [path for folder in sorted(folders) for path in sorted((WEB / folder).glob("*.css"))]
    styles = {path.relative_to(WEB).as_posix(): path.read_text(encoding="utf-8") for path in sheets}
    return _HEAD % json.dumps(styles).replace("<", "\\u003c") + "".join(modules.values())


def _add(name: str, modules: dict[str, str]) -> None:
    """Adds a module after all that it imports."""
    if name in modules:
        return
    text = (WEB / name).read_text(encoding="utf-8")

    def imported(found: re.Match) -> str:
        names, path = found.groups()
        other = posixpath.normpath(f"{name}/../{path}")
        _add(other, modules)
        return f'const {names.replace(" as ", ": ")} = modules["{other}"];' if names else ""

    exports = ", ".join(_EXPORT.findall(text))
    text = _EXPORT.sub("", _IMPORT.sub(imported, text)).replace("import.meta.url", f'"file:///{name}"')
    if left := _FOREIGN.search(text):
        raise ValueError(f"{name}: no script without a server can hold {left[0]!r}.")
    modules[name] = _MODULE % (name, text, exports)
