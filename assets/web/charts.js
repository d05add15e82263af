// The four live charts, drawn by plotly.
//
// This file is the body of a gr.HTML component's js_on_load. Figures arrive with the messages of the live view
// (rounds.js hands them on as an event), one at a time during a run: plotly updates the chart in place, which costs a
// fraction of building it anew, and nothing on the page moves.

const CONFIG = { displayModeBar: false, responsive: true };
const frames = [...element.querySelectorAll("[data-chart]")];

function draw(charts) {
  for (const [slot, figure] of Object.entries(charts)) {
    Plotly.react(frames[slot], figure.data, figure.layout, CONFIG);
  }
}

draw(JSON.parse(props.value));
window.addEventListener("specviz:charts", (event) => draw(event.detail));
