// What the components share; put in front of each (specviz/ui/components.py).

/** An element: make("b", { class: "x", text: "…", on: { click } }, child, …). Text is never parsed as HTML. */
function make(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [type, handler] of Object.entries(value)) node.addEventListener(type, handler);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}
