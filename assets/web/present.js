// Presentation: the round of the reader's place (playback.js), large enough for the back row, over the whole window.

const TOKENS_SHOWN = 90; // of the text's end: more than its lines can hold

const presentation = { open: false, drawn: "", before: null };

function buildPresentation() {
  const close = make("button", { type: "button", class: "go", part: "present-close", text: say("playback.close"), on: { click: closePresentation } });
  const button = (name, click) => make("button", { type: "button", class: "go", "aria-label": say(`playback.${name}`), on: { click } }, icon(name));
  ui.presentPlace = make("h2", { part: "present-place" });
  ui.presentText = make("p", { class: "tail", part: "present-text", dir: "auto" });
  ui.presentRound = make("div", { class: "large", part: "present-round", on: { click: onLargeChip } });
  ui.presentCoin = make("div", { class: "coins", part: "present-coin" });
  ui.presentSay = make("p", { class: "says", part: "present-say", "aria-live": "polite" });
  ui.presentPlay = make("button", { type: "button", class: "go play", part: "present-play", on: { click: togglePlay } });
  ui.dialog = make("dialog", { class: "presentation", part: "presentation", "aria-label": say("playback.presentation"),
    on: { close: onPresentationClosed } },
    make("div", { class: "top" }, ui.presentPlace, close), make("div", { class: "past" }, ui.presentText), ui.presentRound,
    make("div", { class: "why" }, ui.presentCoin, ui.presentSay),
    make("div", { class: "bottom" }, button("back", () => step(-1)), ui.presentPlay, button("forward", () => step(1)),
      make("span", { class: "keys", text: say("playback.keys") })));
  ui.view.append(ui.dialog);
  document.addEventListener("fullscreenchange", () => document.fullscreenElement === null && closePresentation());
}

async function openPresentation() {
  if (presentation.open || !state.drawn) return;
  presentation.open = true;
  presentation.before = shadow.activeElement;
  try {
    await document.documentElement.requestFullscreen();
  } catch {
    // Refused by the browser, or by the page that frames this one: the window will do.
  }
  // Only now: what enters the top layer last lies on top.
  ui.dialog.showModal();
  ui.presentPlay.focus();
  presentation.drawn = "";
  drawPresentation();
}

function closePresentation() {
  if (ui.dialog.open) ui.dialog.close();
}

function onPresentationClosed() {
  presentation.open = false;
  ui.presentRound.replaceChildren();
  if (document.fullscreenElement) document.exitFullscreen();
  (presentation.before ?? ui.present).focus({ preventScroll: true });
}

/** Any token whose verdict is out explains itself. */
function onLargeChip(event) {
  const button = event.target.closest(".chip");
  if (!button) return;
  choose(place(button));
  drawPresentation();
}

function drawPresentation() {
  if (!ui.dialog?.open) return;
  const at = playback.at ?? lastPlace();
  setText(ui.presentPlace, placeLabel());
  const moving = playback.playing || (playback.at === null && state.phase === "running");
  ui.presentPlay.dataset.icon = moving ? "pause" : "play";
  ui.presentPlay.setAttribute("aria-label", say(moving ? "playback.pause" : "playback.play"));
  drawTextEnd(playback.at ? frontier() : { round: at.round, count: state.rounds[at.round]?.emitted.length ?? 0 });
  drawLargeRound(at);
  drawReason(at);
}

/** The end of what is committed, tinted like the text itself. */
function drawTextEnd({ round, count }) {
  const spans = [];
  for (let index = round; index >= 0 && spans.length < TOKENS_SHOWN; index -= 1) {
    const own = state.spans[index] ?? [];
    spans.unshift(...(index === round ? own.slice(0, count) : own));
  }
  const copies = spans.slice(-TOKENS_SHOWN).map((span) => make("span", { class: `t ${span.dataset.kind ?? "missing"}`, text: span.textContent }));
  const prompt = spans.length < TOKENS_SHOWN ? [make("span", { class: "prompt", text: state.start.prompt ?? "" })] : [];
  ui.presentText.replaceChildren(...prompt, ...copies, make("span", { class: "caret here", "aria-hidden": "true" }));
}

/** A tree is drawn as a tree, a chain in one line; drawn once a round, then only told. */
function drawLargeRound({ round: index, stage }) {
  const round = stage > 0 ? state.rounds[index] : null;
  const drawn = round ? `${state.run} ${index}` : "";
  if (presentation.drawn !== drawn || !round) {
    presentation.drawn = drawn;
    ui.dialog.toggleAttribute("data-tree", Boolean(round && isTree(round)));
    ui.presentRound.replaceChildren(...(round ? [largeRound(index, round)] : []));
  }
  if (!round) return;
  tell(ui.presentRound, index, playback.at ? knownAt(index, stage) : null);
  for (const button of ui.presentRound.querySelectorAll(".chip")) {
    const { chosen } = state;
    button.classList.toggle("chosen", chosen?.round === index && chosen.index === indexOf(button));
  }
  ui.presentRound.querySelector(".chip.chosen")?.scrollIntoView({ block: "nearest", inline: "center" });
}

function largeRound(index, round) {
  if (isTree(round)) return treeBox(index, round);
  const chips = make("div", { class: "chips" });
  fillPath(chips, index, round);
  return chips;
}

/** The sentence and the coin of the token that is looked at. */
function drawReason(at) {
  const here = state.chosen?.round === at.round ? state.chosen : spotOf(at);
  const round = state.rounds[at.round];
  if (!here || !round) {
    setText(ui.presentSay, at.stage ? say("playback.say_missing") : say("playback.say_start"));
    return ui.presentCoin.replaceChildren();
  }
  setText(ui.presentSay, sentenceHere(here));
  const token = here.index === "next" ? null : round.drafted[here.index];
  const flipped = token && token.u !== null && isJudged(token) && !isLossy(round) && !sealedAt(here);
  ui.presentCoin.replaceChildren(...(flipped ? [coinLine(token)] : []));
}
