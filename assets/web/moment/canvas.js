// A sheet to draw on, for pictures and clips that leave the page, in the page's colours and fonts.

export const WIDTH = 1280;
export const HEIGHT = 720;
export const EDGE = 48; // px that stay free around everything

/** @typedef {{ size?: number, colour?: string, font?: "sans" | "serif", bold?: boolean, align?: CanvasTextAlign, width?: number }} Type */

export class Sheet {
  /** @param {HTMLElement} host whose colours it takes @param {HTMLCanvasElement} canvas */
  constructor(host, canvas) {
    this.pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    this.style = getComputedStyle(host);
  }

  /** @param {string} name of colours.css */
  value(name) {
    return this.style.getPropertyValue(`--sv-${name}`).trim();
  }

  /** Begins anew, with the line at its foot. @param {string} made how what is drawn was made */
  clear(made) {
    this.box(0, 0, WIDTH, HEIGHT, { fill: "bg" });
    this.text("specviz", EDGE, HEIGHT - 26, { size: 17, bold: true });
    this.text(made, EDGE + 84, HEIGHT - 26, { size: 16, colour: "soft", width: WIDTH - 2 * EDGE - 84 });
  }

  /** Draws what has come in so far: 0 not at all, 1 fully. @param {number} share @param {() => void} draw */
  fading(share, draw) {
    this.pen.globalAlpha = share;
    if (share > 0) draw();
    this.pen.globalAlpha = 1;
  }

  /** @param {string} text @param {Type} type */
  measure(text, { size = 20, font = "sans", bold = false }) {
    this.pen.font = `${bold ? "600 " : ""}${size}px ${this.value(font)}`;
    return this.pen.measureText(text).width;
  }

  /** One line, cut where it is longer than `width`. @param {string} text @param {number} x @param {number} y of its baseline @param {Type} [type] */
  text(text, x, y, type = {}) {
    const signs = [...text];
    let shown = text;
    while (this.measure(shown, type) > (type.width ?? Infinity) && signs.pop()) shown = `${signs.join("")}…`;
    this.pen.fillStyle = this.value(type.colour ?? "ink");
    this.pen.textAlign = type.align ?? "left";
    this.pen.fillText(shown, x, y);
  }

  /** Where each line of a text begins and ends. @param {string} text @param {number} width @param {Type} type @returns {[number, number][]} */
  lines(text, width, type) {
    const lines = /** @type {[number, number][]} */ ([[0, 0]]);
    for (const word of text.match(/[^ ]{1,24} *| +/gu) ?? []) {
      const line = lines[lines.length - 1];
      if (this.measure(text.slice(line[0], line[1]) + word.trimEnd(), type) <= width) line[1] += word.length;
      else lines.push([line[1], line[1] + word.length]);
    }
    return lines;
  }

  /** Three lines at most, across the sheet. @param {string} text @param {number} y */
  paragraph(text, y) {
    const type = { size: 18, width: WIDTH - 2 * EDGE };
    this.lines(text, type.width, type).slice(0, 3).forEach(([from, to], i) => this.text(text.slice(from, i < 2 ? to : undefined).trimEnd(), EDGE, y + 24 * i, type));
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height @param {{ fill: string, edge?: string, dashed?: boolean, radius?: number }} look */
  box(x, y, width, height, { fill, edge, dashed = false, radius = 0 }) {
    this.pen.beginPath();
    this.pen.roundRect(x, y, width, height, radius);
    this.pen.fillStyle = this.value(fill);
    this.pen.fill();
    if (!edge) return;
    this.pen.setLineDash(dashed ? [5, 4] : []);
    this.pen.lineWidth = 2;
    this.pen.strokeStyle = this.value(edge);
    this.pen.stroke();
  }
}
