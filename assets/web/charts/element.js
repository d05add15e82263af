// <specviz-charts>: the four live charts, drawn by plotly, and each as a file.
//
// Takes { kind: "charts", charts: their values by their place (specviz/views/charts.py), file: what their files are called,
// empty where none can be had, plotly: where plotly.js is, loaded when there is something to draw; without it shared/plot.js
// draws }, and follows the page's <specviz-run> (but not with the attribute `apart`), which hands charts on one at a time during a run: plotly updates a chart in
// place, which costs a fraction of building it anew, and nothing on the page moves. Its styles are the page's, so the charts
// lie outside the shadow root.

import { make } from "../shared/dom.js";
import { SpecvizElement, sheet } from "../shared/element.js";
import { liveRun } from "../shared/live.js";
import { react } from "../shared/plot.js";
import { FIGURES, LABELS } from "./figures.js";

const CONFIG = { displayModeBar: false, responsive: true };
const NAMES = ["acceptance-rate", "tokens-per-pass", "acceptance-by-position", "round-times"];
const SIZE = { width: 640, height: 400 }; // px of a file, twice as many in a PNG

document.adoptedStyleSheets.push(await sheet(new URL("charts.css", import.meta.url)));

class SpecvizCharts extends SpecvizElement {
  /** @type {any[]} what plotly draws in */
  frames = [];
  /** @type {any} what draws: plotly, or what stands in for it */
  plotly = { react };
  file = ""; // what the files of the run on the screen are called
  /** @type {Set<Element>} frames drawn in a hidden tab, where plotly could not know how wide they are */
  unseen = new Set();
  coming = new ResizeObserver((entries) => {
    for (const { target, contentRect } of entries) if (contentRect.width && this.unseen.delete(target)) this.plotly.Plots?.resize(target);
  });

  build() {
    this.shadow.append(make("slot"));
  }

  connected() {
    if (this.hasAttribute("apart")) return; // whoever holds it tells it what to draw
    this.listen(document, "specviz-charts", (event) => this.draw(event.detail));
    this.listen(document, "specviz-share", (event) => (this.file = event.detail.file));
  }

  get handlers() {
    return {
      /** @param {any} message */
      charts: async ({ charts, file, plotly }) => {
        if (plotly) this.plotly = await loaded(plotly);
        const labels = LABELS.map((key) => this.say(key));
        const live = this.hasAttribute("apart") ? null : liveRun(); // plotly.js is large: a run may have been quicker
        this.file = live?.share?.file ?? file;
        this.frames = labels.map((_, place) => make("div", { "data-chart": place }));
        const figures = labels.map((label, place) =>
          make("figure", { class: "sv-chart", "aria-label": label }, this.frames[place], ...(file ? [this.files(label, place)] : [])));
        this.replaceChildren(make("div", { class: "sv-charts" }, ...figures));
        this.frames.forEach((frame) => this.coming.observe(frame));
        this.draw({ ...charts, ...live?.charts });
      },
    };
  }

  /** @param {string} label @param {number} place */
  files(label, place) {
    const buttons = ["png", "svg"].map((format) => make("button", { type: "button", text: format.toUpperCase(),
      "aria-label": this.say(`traces.chart_${format}`, { chart: label }), "data-format": format,
      on: { click: () => this.save(place, format) } }));
    return make("div", { class: "sv-chart-files" }, ...buttons);
  }

  /** @param {Record<string, any>} charts their values by their place */
  draw(charts) {
    for (const [place, values] of Object.entries(charts)) {
      const frame = this.frames[Number(place)];
      if (!frame) continue;
      const { data, layout } = FIGURES[Number(place)](values, this.say);
      this.plotly.react(frame, data, layout, CONFIG);
      if (!frame.clientWidth) this.unseen.add(frame);
    }
  }

  /** @param {number} place @param {string} format */
  save(place, format) {
    const { data, layout } = this.frames[place];
    const figure = structuredClone(figureForFile(getComputedStyle(this), { data, layout }));
    const filename = `${this.file}-${NAMES[place]}`;
    return this.plotly.downloadImage(figure, { ...SIZE, format, filename, scale: format === "png" ? 2 : 1 });
  }
}

/** plotly.js, which is large: a script that sets a global. @param {string} url */
function loaded(url) {
  if ("Plotly" in window) return Promise.resolve(/** @type {any} */ (window).Plotly);
  const script = make("script", { src: url });
  document.head.append(script);
  return new Promise((resolve, reject) => {
    script.onload = () => resolve(/** @type {any} */ (window).Plotly);
    script.onerror = reject;
  });
}

/**
 * A chart with its colours written into it: on the page they come from the style sheet, which a file does not have.
 * The ground is the page's, so that what is readable in the dark stays so.
 *
 * @param {CSSStyleDeclaration} style
 * @param {any} figure
 */
function figureForFile(style, { data, layout }) {
  const colour = (/** @type {string} */ name) => style.getPropertyValue(`--sv-${name}`).trim();
  const axis = (/** @type {any} */ given) => ({
    ...given,
    gridcolor: colour("line"),
    tickfont: { ...given.tickfont, color: colour("soft") },
    title: { ...given.title, font: { ...given.title.font, color: colour("soft") } },
  });
  return {
    data: data.map((/** @type {any} */ trace) => ({ ...trace, textfont: { ...trace.textfont, color: colour("ink") } })),
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

customElements.define("specviz-charts", SpecvizCharts);
