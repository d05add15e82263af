// The page of a comparison in a file of its own (`comparison_page` in specviz/views/pages.py writes it): <specviz-compare>.

import "../compare/element.js";
import { make } from "../shared/dom.js";
import { open } from "./frame.js";

open((main, { words, label }, { message, prompt }, before) => {
  const table = make("specviz-compare");
  main.append(make("p", { class: "prompt", dir: "auto", translate: "no", tabindex: "0", role: "region", "aria-label": label, text: prompt }), table);
  table.words = words;
  table.receive(JSON.parse(message));
  if (before) table.sortAs(before.querySelector("specviz-compare"));
});
