// Lets the page's own parts (the tour, a gallery, a shared link) set its controls and press its buttons.
//
// This file is the body of a gr.HTML component's js_on_load. A part dispatches a `specviz:apply` event on the window
// with { settings, press, measure }: the settings by the names of the controls, the button to press once they stand, or
// null, and whether the speedup is to be measured after a run (left out: as the visitor has it). The server checks the
// settings and sets the controls; its answer is this component's value.

const BUTTONS = { generate: "#go", race: "#start-race", compare: "#start-compare", lossless: "#start-lossless" };

window.addEventListener("specviz:apply", (event) => trigger("submit", { measure: null, ...event.detail }));

watch("value", () => {
  const answer = JSON.parse(props.value);
  window.dispatchEvent(new CustomEvent("specviz:applied", { detail: answer }));
  // The next frame: the controls take their values together with this one.
  if (answer.press) requestAnimationFrame(() => document.querySelector(BUTTONS[answer.press]).click());
});
