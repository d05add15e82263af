// Where the models are and runs are made, beside the page. Takes { load: { target, draft, tokenizer } }, { run: settings } and
// { stop: true }; tells { bytes }, what has come of the files, { ready: true }, { message }, one for <specviz-run>, { idle: true },
// and { failure }.

import { Counts } from "./counts.js";
import { rounds } from "./decoding.js";
import { DraftModel, Plain, PromptLookup } from "./drafters.js";
import { Kernels } from "./kernels.js";
import { Llama, Reader } from "./llama.js";
import { measure } from "./measuring.js";
import { recorded } from "./record.js";
import { Tokenizer } from "./tokenizer.js";

/** @typedef {import("./decoding.js").Settings} Settings */
/** @typedef {import("./decoding.js").Round} Round */

const BATCH = 250; // ms between messages: on a single core, drawing takes time from what is drawn

/**
 * Logits. Nearer than this, a decision might fall otherwise in other arithmetic. These kernels were seen to differ from torch
 * by 2.3e-5 at most in a logit, and by 1.1e-5 in the log-odds of a place on the line from 0 to 1.
 */
const NEAR = { greedy: 5e-5, drawn: 1.5e-5 };

const tell = (/** @type {any} */ message) => self.postMessage(message);

/** @type {{ tokenizer: Tokenizer, target: Reader, rival: Reader, draft: Reader }} rival: reads the plain text that is measured beside */
let models;
let stopped = false;
let count = 0; // of runs

/** Lets messages in. A channel, because timers wait for milliseconds. */
const breath = (() => {
  const { port1, port2 } = new MessageChannel();
  return () => new Promise((resolve) => {
    port1.onmessage = resolve;
    port2.postMessage(null);
  });
})();

self.onmessage = async ({ data }) => {
  if (data.stop) stopped = true;
  try {
    if (data.load) await load(data.load);
    if (data.run) await run(data.run);
  } catch (error) {
    tell({ failure: String(error) });
  }
};

/** @param {{ target: import("./llama.js").Place, draft: import("./llama.js").Place, tokenizer: string }} places */
async function load({ target, draft, tokenizer }) {
  let bytes = 0;
  const onBytes = (/** @type {number} */ more) => tell({ bytes: (bytes += more) });
  const kernels = await Kernels.load();
  const small = await Llama.load(kernels, draft, onBytes);
  const large = await Llama.load(kernels, target, onBytes);
  models = {
    tokenizer: new Tokenizer(await (await fetch(tokenizer)).json()),
    target: new Reader(large), rival: new Reader(large), draft: new Reader(small),
  };
  tell({ ready: true });
}

/** The rounds of a run from its start. @param {Settings} settings @param {Reader} target */
function begin(settings, target = models.target) {
  const { tokenizer, draft } = models;
  target.keep(0);
  draft.keep(0);
  const drafter = settings.drafter === "draft_model" ? new DraftModel(draft, settings.temperature)
    : settings.drafter === "prompt_lookup" ? new PromptLookup(target.model.vocabulary) : new Plain();
  return rounds(target, drafter, tokenizer, settings.drafter === "plain" ? { ...settings, num_draft_tokens: 0 } : settings);
}

/** @param {Settings & { measured: boolean, opening: any }} asked opening: what the page says of the run at its start */
async function run({ measured, opening, ...settings }) {
  const [tokens, most] = [models.tokenizer.encode(settings.prompt).length, models.target.model.positions - 1];
  if (tokens > most) {
    tell({ message: { kind: "error", text: { say: "static.too_long", tokens, most } } });
    return tell({ idle: true });
  }
  stopped = false;
  const key = `browser-${++count}`;
  const [counts, vocabulary] = [new Counts(), new Map()];
  /** @type {any[]} */
  let batch = [];
  let nearest = { edge: Infinity, index: 0 };
  let [last, ending] = [performance.now(), "stopped"];
  const send = () => {
    const { figures, charts } = counts;
    tell({ message: { kind: "rounds", run: key, first: batch[0].index, rounds: batch, vocabulary: Object.fromEntries(vocabulary), figures, charts } });
    [batch, last] = [[], performance.now()];
    vocabulary.clear();
  };
  const end = (/** @type {any} */ rest) => tell({ message: { kind: "end", run: key, total: counts.emitted.length, charts: counts.charts, ...rest } });
  tell({ message: { ...opening, kind: "start", run: key } });
  for (const round of begin(settings)) {
    counts.add(round);
    batch.push(recorded(round, settings.temperature, models.tokenizer, vocabulary));
    if (round.edge < nearest.edge) nearest = round;
    ending = round.stop ?? "stopped";
    if (performance.now() - last > BATCH) send();
    await breath();
    if (stopped) break;
  }
  if (batch.length) send();
  const { edge, index } = nearest;
  const note = edge < (settings.temperature ? NEAR.drawn : NEAR.greedy) ? { say: "static.near", round: index + 1, edge: edge.toExponential(1) } : "";
  const reason = { say: `generate.end_${ending}` };
  const speeds = measured && settings.drafter !== "plain" && !stopped;
  end({ reason, note, figures: counts.figures, more: speeds });
  if (speeds) {
    const goesOn = async () => (await breath(), !stopped);
    const figures = await measure((one) => begin({ ...one, drafter: "plain" }, models.rival), (one) => begin(one), settings, goesOn);
    end({ reason, note, figures: { ...counts.figures, ...figures }, more: false });
  }
  tell({ idle: true });
}
