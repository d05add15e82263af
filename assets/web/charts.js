// The four live charts, drawn by plotly, and each as a file.
//
// This file is the body of a gr.HTML component's js_on_load; `TEXTS` and dom.js are put in front. Figures arrive with
// the messages of the live view (rounds.js hands them on as an event), one at a time during a run: plotly updates the
// chart in place, which costs a fraction of building it anew, and nothing on the page moves.

const CONFIG = { displayModeBar: false, responsive: true };
const NAMES = ["acceptance-rate", "tokens-per-pass", "acceptance-by-position", "round-times"];
const SIZE = { width: 640, height: 400 }; // px of a file, twice as many in a PNG

const view = document.querySelector(".specviz-rounds")?.specviz; // plotly.js is large: a run may have been quicker
const frames = [...element.querySelectorAll("[data-chart]")];
const first = JSON.parse(props.value);
let file = view?.share?.file ?? first.file; // what the files of the run on the screen are called

function draw(charts) {
  for (const [slot, figure] of Object.entries(charts)) {
    Plotly.react(frames[slot], figure.data, figure.layout, CONFIG);
  }
}

/**
 * A chart with its colours written into it: on the page they come from the style sheet, which a file does not have.
 * The ground is the page's, so that what is readable in the dark stays so.
 */
function figureForFile({ data, layout }) {
  const style = getComputedStyle(element);
  const colour = (name) => style.getPropertyValue(`--sv-${name}`).trim();
  const axis = (given) => ({
    ...given,
    gridcolor: colour("line"),
    tickfont: { ...given.tickfont, color: colour("soft") },
    title: { ...given.title, font: { ...given.title.font, color: colour("soft") } },
  });
  return {
    data: data.map((trace) => ({ ...trace, textfont: { ...trace.textfont, color: colour("ink") } })),
    layout: {
      ...layout,
      paper_bgcolor: colour("card"),
      plot_bgcolor: colour("card"),
      font: { ...layout.font, color: colour("soft"), family: "sans-serif" },
      title: { ...layout.title, font: { ...layout.title.font, color: colour("ink") } },
      xaxis: axis(layout.xaxis),
      yaxis: axis(layout.yaxis),
    },
  };
}

function save(slot, format) {
  const figure = structuredClone(figureForFile({ data: frames[slot].data, layout: frames[slot].layout }));
  const filename = `${file}-${NAMES[slot]}`;
  return Plotly.downloadImage(figure, { ...SIZE, format, filename, scale: format === "png" ? 2 : 1 });
}

frames.forEach((frame, slot) => {
  const label = frame.parentElement.getAttribute("aria-label");
  const buttons = ["png", "svg"].map((format) => make("button", {
    type: "button", text: format.toUpperCase(), "aria-label": say(`traces.chart_${format}`, { chart: label }),
    "data-format": format, on: { click: () => save(slot, format) },
  }));
  frame.after(make("div", { class: "sv-chart-files" }, ...buttons));
});
draw({ ...first.charts, ...view?.charts });
window.addEventListener("specviz:charts", (event) => draw(event.detail));
window.addEventListener("specviz:share", (event) => (file = event.detail.file));
