// <specviz-quiz>: five questions on recorded rounds, once before a lesson and once after it, for one reader or a class.
//
// Takes { kind: "quiz", forms } of specviz/views/quiz.py: two forms of the same questions; `alone` where there is no server
// for a class. Chance decides which of them comes before, and the order of questions and options. What was right is said
// after the second time only; until then nothing on the page tells it. A teacher's page shows a class what to scan, and
// its answers side by side; `?lesson=CODE` in the address opens a phone's, `?quiz=1` the questions.

import { hand } from "../moment/moment.js";
import { make, setText } from "../shared/dom.js";
import { SpecvizElement, sheet } from "../shared/element.js";
import { keep, kept } from "../shared/kept.js";
import { isOwnName } from "../shared/spot.js";
import { quoted, showToken } from "../shared/tokens.js";
import { marks, PHASES, table } from "./answers.js";
import { endLesson, leaveAnswers, linkedLesson, linkToLesson, openLesson, pictureOf, readAnswers, takeSeat } from "./lesson.js";

/** @typedef {import("./answers.js").Question} Question */
/** @typedef {import("./answers.js").Phase} Phase */
/** @typedef {import("./answers.js").Answers} Answers */
/** @typedef {import("./answers.js").Person} Person */
/** @typedef {{ first: number, person: string, before?: Answers, after?: Answers, seat?: { code: string, seat: string, sent?: Phase[], over?: boolean }, taught?: import("./lesson.js").Taught }} State */

const LOOK_EVERY = 2000; // ms between a teacher's looks at the answers, and a phone's attempts to send its own

const sheets = [await sheet(new URL("quiz.css", import.meta.url))];

/** @template T @param {T[]} list @returns {T[]} */
function shuffled(list) {
  const left = [...list];
  return list.map(() => left.splice(Math.floor(Math.random() * left.length), 1)[0]);
}

const newState = () => ({ first: Math.random() < 0.5 ? 0 : 1, person: Math.random().toString(36).slice(2, 10) });

class SpecvizQuiz extends SpecvizElement {
  static sheets = sheets;

  /** @type {State} */
  state = kept("questions") ?? newState();
  /** @type {Question[][]} */
  forms = [];
  /** @type {Person[]} of a teacher's class, by seat */
  people = [];
  alone = false;
  /** @type {any} the nodes drawn into */
  ui = {};
  /** @type {Promise<void> | undefined} of a phone: done once it has its seat, or is refused one */
  joining;
  sending = false;

  build() {
    const { ui, say } = this;
    ui.opener = make("button", { class: "opener", type: "button", part: "opener", "aria-haspopup": "dialog",
      title: say("quiz.title"), text: `? ${say("quiz.open")}`, on: { click: () => this.press() } });
    ui.body = make("div", { part: "body" });
    ui.note = make("p", { class: "note", role: "status", part: "note" });
    ui.dialog = make("dialog", { part: "dialog", "aria-labelledby": "title" },
      make("div", { class: "top" }, make("h2", { id: "title", tabindex: "-1", text: say("quiz.title") }),
        make("button", { class: "close", type: "button", part: "close", "aria-label": say("quiz.close"), text: "×", on: { click: () => ui.dialog.close() } })),
      ui.body, ui.note);
    ui.dialog.addEventListener("click", (/** @type {Event} */ event) => event.target === ui.dialog && ui.dialog.close());
    this.shadow.append(ui.opener, ui.dialog);
    setInterval(() => {
      this.look();
      this.leave();
    }, LOOK_EVERY);
  }

  get handlers() {
    return {
      /** @param {any} message */
      quiz: ({ forms, alone = false }) => {
        const again = this.forms.length > 0; // the page is told of them more than once
        Object.assign(this, { forms, alone });
        const code = linkedLesson();
        if (code) this.joining ??= this.join(code);
        else if (!again && new URLSearchParams(location.search).get("quiz") === "1") this.open();
      },
    };
  }

  async press() {
    await this.joining;
    this.open();
  }

  open() {
    if (!this.ui.dialog.open) this.ui.dialog.showModal();
    this.show();
  }

  /** @param {Partial<State>} changes */
  change(changes) {
    Object.assign(this.state, changes);
    keep("questions", this.state);
    this.show();
  }

  /** Draws where the reader is, and leaves the focus at its beginning. */
  show() {
    const { before, after, taught } = this.state;
    this.note("");
    this.draw(...(taught ? this.lesson() : after ? this.result() : before ? this.pause() : this.start()));
    this.look();
  }

  /** @param {...Node} nodes */
  draw(...nodes) {
    this.ui.body.replaceChildren(...nodes);
    this.shadow.getElementById("title")?.focus();
  }

  /** @param {string} text */
  note(text) {
    setText(this.ui.note, text);
  }

  /** @param {string} key @param {() => void} click @param {string} [kind] */
  button(key, click, kind = "go") {
    return make("button", { type: "button", class: kind, part: key, text: this.say(`quiz.${key}`), on: { click } });
  }

  /** @param {string} key @param {Record<string, unknown>} [values] */
  line(key, values) {
    return make("p", { text: this.say(`quiz.${key}`, values) });
  }

  start() {
    const { seat } = this.state;
    const teach = seat || this.alone ? [] : [this.button("teach", () => this.teach(), "plain")];
    return [this.line(seat ? "lead_class" : "lead"), make("div", { class: "buttons" }, this.button("begin", () => this.ask("before")), ...teach)];
  }

  pause() {
    return [this.line("noted"), make("div", { class: "buttons" }, this.button("again", () => this.ask("after")))];
  }

  // Asking.

  /** @param {Phase} phase */
  ask(phase) {
    const form = phase === "before" ? this.state.first : 1 - this.state.first;
    this.note("");
    this.next(phase, { form, chosen: [], seconds: [] }, shuffled([...this.forms[form].keys()]));
  }

  /** @param {Phase} phase @param {Answers} answers as far as they are given @param {number[]} left the questions that are still to be asked */
  next(phase, answers, left) {
    const { form, chosen, seconds } = answers;
    if (!left.length) {
      this.change({ [phase]: answers });
      this.leave();
      return;
    }
    const [number, ...rest] = left;
    const question = this.forms[form][number];
    const n = this.forms[form].length;
    const begun = performance.now();
    const next = this.button(rest.length ? "next" : "done", () => {
      seconds[number] = Math.round((performance.now() - begun) / 100) / 10;
      this.next(phase, answers, rest);
    });
    next.disabled = true;
    // An answer can be changed until the next question, which then does not stand under the same finger.
    const options = shuffled([...question.options.keys()]).map((index) => {
      const option = make("button", { type: "button", class: "option", "aria-pressed": "false", on: { click: () => {
        chosen[number] = index;
        next.disabled = false;
        for (const one of options) one.setAttribute("aria-pressed", String(one === option));
      } } }, this.option(question, index));
      return option;
    });
    this.draw(make("p", { class: "count", text: this.say("quiz.count", { i: n - rest.length, n }) }),
      make("p", { class: "question", part: "question", "data-question": question.name, text: this.said(question, "ask") }),
      make("div", { class: "options", role: "group", "aria-label": this.say("quiz.options") }, ...options), make("div", { class: "buttons end" }, next));
  }

  /** A sentence of a question, with its values; a model's own text is quoted. @param {Question} question @param {string} key @param {Record<string, any>} [values] */
  said({ name, values: own }, key, values = own) {
    const written = Object.entries(values).map(([field, value]) => [field, value?.token === undefined ? value : quoted(this.say, value.token)]);
    return this.say(`quiz.${name}_${key}`, Object.fromEntries(written));
  }

  /** @param {Question} question @param {number} index */
  option(question, index) {
    const { key, ...values } = question.options[index];
    const text = make("span", { text: this.said(question, key, values) });
    return values.token ? make("span", { class: "pick" }, showToken(this.say, make("b"), values.token.token), text) : text;
  }

  // What came of it.

  result() {
    const [before, after] = PHASES.map((phase) => marks(this.forms, /** @type {Answers} */ (this.state[phase])));
    const rows = this.forms[0].map(({ name }, i) => make("li", { part: "answered" },
      make("b", { text: this.say(`quiz.${name}_title`) }),
      make("span", { text: this.say("quiz.marks", { before: mark(before[i]), after: mark(after[i]) }) }),
      ...PHASES.map((phase, which) => this.explained(phase, i, ![before, after][which][i]))));
    const total = this.say("quiz.total", { before: before.filter(Boolean).length, after: after.filter(Boolean).length, n: rows.length });
    return [make("p", { class: "total", part: "total", text: total }), make("ol", {}, ...rows),
      make("div", { class: "buttons" }, this.saver(() => [[this.state.person, this.state]]),
        // Who sits in a class would leave it, and take another seat.
        ...(this.state.seat ? [] : [this.button("forget", () => this.restart(), "plain")]))];
  }

  /** @param {() => [string, Person][]} people */
  saver(people) {
    return this.button("save", () => hand(new Blob([table(this.forms, people())], { type: "text/csv" }), "five-questions.csv"), "plain");
  }

  /** @param {Phase} phase @param {number} i @param {boolean} open as it is where the answer was wrong */
  explained(phase, i, open) {
    const { form } = /** @type {Answers} */ (this.state[phase]);
    const question = this.forms[form][i];
    const why = question.values.why ? `why_${question.values.why}` : "why";
    return make("details", { open }, make("summary", { text: this.said(question, "ask") }),
      make("p", {}, this.option(question, question.truth)), make("p", { text: this.said(question, why) }));
  }

  restart() {
    this.state = newState();
    this.change({});
  }

  // A class: a phone's side.

  /** Opens once its seat is taken: one that came later would begin anew, under somebody's finger. @param {string} code */
  async join(code) {
    let refusal = "";
    if (this.state.seat?.code !== code) {
      this.state = newState();
      await takeSeat(code).then((seat) => this.change({ seat: { code, seat } }), (status) => (refusal = status === 404 ? "quiz.over" : "quiz.full"));
    }
    this.open();
    if (refusal) this.note(this.say(refusal));
  }

  /** Sends what the class has not got yet, until it has. */
  async leave() {
    const { seat } = this.state;
    const due = seat && !seat.over ? PHASES.filter((phase) => this.state[phase] && !seat.sent?.includes(phase)) : [];
    if (!seat || !due.length || this.sending) return;
    this.sending = true;
    try {
      for (const phase of due) {
        await leaveAnswers(seat.code, { seat: seat.seat, phase, .../** @type {Answers} */ (this.state[phase]) });
        seat.sent = [...(seat.sent ?? []), phase];
      }
      this.note(this.say("quiz.sent"));
    } catch (status) {
      seat.over = status === 404;
      this.note(this.say(seat.over ? "quiz.over" : "quiz.unsent"));
    }
    this.sending = false;
    keep("questions", this.state);
  }

  // A class: the teacher's side.

  teach() {
    openLesson().then((taught) => this.change({ taught }), (status) => this.note(this.say(status === 429 ? "quiz.full" : "quiz.no_server")));
  }

  lesson() {
    const { taught } = this.state;
    const link = linkToLesson(/** @type {import("./lesson.js").Taught} */ (taught).code);
    this.ui.seats = make("p", { class: "count", part: "seats" });
    this.ui.counts = make("ol", { part: "counts" });
    const own = isOwnName(link); // no phone could follow it
    return [make("div", { class: "class" }, ...(own ? [] : [make("img", { part: "qr", src: pictureOf(link), alt: this.say("quiz.qr") })]),
      make("div", {}, this.line(own ? "own_name" : "lead_teacher", { host: location.host }), make("p", {}, make("a", { href: link, text: link })), this.ui.seats)),
    this.ui.counts, make("div", { class: "buttons" }, this.saver(() => this.people.map((one, seat) => [`${taught?.code}-${seat + 1}`, one])),
      this.button("end", () => this.end(), "plain"))];
  }

  /** Reads the answers while they are on the screen. */
  look() {
    const { taught } = this.state;
    if (!taught || !this.ui.dialog.open) return;
    readAnswers(taught).then((people) => taught === this.state.taught && this.count(people), (status) => {
      if (status !== 404 || taught !== this.state.taught) return;
      this.change({ taught: undefined });
      this.note(this.say("quiz.over"));
    });
  }

  /** @param {Person[]} people */
  count(people) {
    this.people = people;
    setText(this.ui.seats, this.say("quiz.seats", { n: people.length }));
    this.ui.counts.replaceChildren(...this.forms[0].map(({ name }, i) => make("li", { part: "counted", "data-question": name },
      make("b", { text: this.say(`quiz.${name}_title`) }), ...PHASES.map((phase) => this.bar(phase, i)))));
  }

  /** How many of the class were right. @param {Phase} phase @param {number} i the question */
  bar(phase, i) {
    const given = this.people.flatMap((one) => one[phase] ?? []);
    const [n, right] = [given.length, given.filter((answers) => marks(this.forms, answers)[i]).length];
    const bar = make("span", { class: "bar", "aria-hidden": "true" }, make("i", { style: `width: ${n ? (100 * right) / n : 0}%` }));
    return make("span", { class: "phase" }, make("span", { text: this.say(`quiz.${phase}`, { right, n }) }), bar);
  }

  end() {
    const { taught } = this.state;
    if (taught) endLesson(taught).catch(() => this.note(this.say("quiz.over")));
    this.change({ taught: undefined });
  }
}

/** @param {boolean} right */
const mark = (right) => (right ? "✓" : "✗");

customElements.define("specviz-quiz", SpecvizQuiz);
