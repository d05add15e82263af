// The page of one run in a file of its own (`run_page` in specviz/views/pages.py writes it): <specviz-run> and its charts.

import "../charts/element.js";
import "../run/element.js";
import { make } from "../shared/dom.js";
import { open } from "./frame.js";

open((main, { words }, { start, rounds, end, charts }, before) => {
  const [run, figures] = [make("specviz-run"), make("specviz-charts")];
  main.append(run, figures);
  run.words = figures.words = words;
  run.receive({ kind: "trace", parts: [start, rounds, end].map((one) => JSON.parse(one)), charts });
  figures.receive({ kind: "charts", charts, file: "" });
  const pinned = before?.querySelector("specviz-run").pinned;
  if (pinned) run.choose(pinned.round, pinned.index);
});
