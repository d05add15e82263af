// The page of a race in a file of its own (`race_page` in specviz/views/pages.py writes it): <specviz-race>, on its clock.

import "../race/element.js";
import { make } from "../shared/dom.js";
import { open } from "./frame.js";

open((main, { words }, { message }, before) => {
  const race = make("specviz-race");
  main.append(race);
  race.words = words;
  race.receive(JSON.parse(message));
  if (before) race.goOnFrom(before.querySelector("specviz-race"));
});
