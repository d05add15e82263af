// What the components share; put in front of each (specviz/ui/components.py), after `TEXTS` and `LANGUAGE`.

/** The page's text of that key (specviz/words.py), with a {name} for each of `values`; `values.n` chooses the plural. */
function say(key, values = {}) {
  const text = TEXTS[key];
  if (text === undefined) throw new Error(`No text for ${key}`);
  const chosen = typeof text === "string" ? text : text[values.n === 1 ? "one" : "other"];
  return chosen.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

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

/** Hands a JSON message to the handler of its kind; returns it, or null where there is nothing to show. */
function dispatch(text, handlers) {
  let message;
  try {
    message = JSON.parse(text);
  } catch {
    return null; // an empty or foreign value
  }
  if (!message || !Object.hasOwn(handlers, message.kind)) return null;
  handlers[message.kind](message);
  return message;
}
