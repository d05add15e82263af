// Types of the run view: the records that messages carry (specviz/views/run_messages.py) and what the parts share.

/** A draft token's place in its round, or "next": the token that the target drew itself. */
export type Index = number | "next";
export type Spot = { round: number; index: Index };

export type { Candidates as Row } from "../shared/records.js";
import type { Round as Recorded, DraftedToken as RecordedToken, NextToken as RecordedNext } from "../shared/records.js";

/** A verdict; `open` and `undrafted` are only supposed (suppose.js). */
export type Outcome = RecordedToken["outcome"] | "open" | "undrafted";

/** `bound`: what the coin has to stay below, as far as it is known; of a token that is only supposed. */
export type DraftedToken = Omit<RecordedToken, "outcome"> & { outcome: Outcome; bound?: [number, number] | null;
  shares?: { p?: [number, number]; q?: [number, number] } };

/** `unknown`: which token it is does not follow from the record. */
export type NextToken = Omit<RecordedNext, "kind"> & { kind: RecordedNext["kind"] | "open"; unknown?: boolean };

/** A round as messages carry it: of its times, the whole. */
export type Round = Omit<Recorded, "seconds" | "drafted" | "next"> & { drafted: DraftedToken[]; next: NextToken; seconds: number | null };

/** A draft token that a coin was flipped for. */
export type FlippedToken = DraftedToken & { u: number; accept_prob: number };

export type Kind = NextToken["kind"] | "plain";

/** The message that begins a run. */
export type Start = {
  run?: string;
  prompt?: string;
  drafter?: string | null;
  num_draft_tokens?: number | "auto";
  greedy?: boolean;
  pair?: string;
  settings?: string;
  /** How the rule decides: coin by coin, all at once, or without coins. */
  draws_like?: "token" | "block" | "typical";
  lossy?: boolean;
  engine?: string;
  recorded?: string;
  machine?: string | null;
  sampling?: { temperature: number; top_k: number; top_p: number; min_p: number };
  file?: string;
  /** How many tokens the target chooses from; 0 if nobody wrote it down. */
  vocab_size?: number;
};

export type Figures = { [name: string]: number | null | undefined };
export type Gap = { run: string; first: number; count: number };

/** Of the round `round`, the first `stage` stages have happened, and all rounds before it. */
export type Place = { round: number; stage: number };

/** A stage of a round; `whole`: one decision on all draft tokens. */
export type Stage = { kind: "draft" | "pass" | "decide" | "next" | "missing"; index: Index; whole?: boolean };

/** What a class is asked before a stage, its answers with their keys, and the value of the right one. */
export type Question = { text: string; options: { value: string; key: string | null; text?: string; token?: string }[]; truth: string };

/** What is known of a round at a place in it. */
export type Known = {
  stage: Stage | null;
  number: number;
  of: number;
  drafted: number;
  passed: boolean;
  judged: Set<Index> | null;
  complete: boolean;
};

export type Pending = "unborn" | "drafted" | "passed" | null;

/** A token among a distribution's bars, its shares least and most; `rest`: all the others together. */
export type Bar = { name: Node; p: [number, number]; q: [number, number]; text: string; rest?: boolean };

/** What the picture is made of, beside its tokens: `draft`, `pass` and `coin` are a token's, the others the round's. */
export type Piece = "text" | "draft" | "pass" | "coin" | "new";

/** A stretch of the line from 0 to 1, and whether it was drawn. */
export type Stretch = [start: number, end: number, drawn?: boolean];

/** A column of the close-up's tables: heading, text of a token's cell. */
export type Column = [string, (token: DraftedToken, index: number) => string];

/** Where a node of a tree stands. */
export type Stand = { column: number; row: number };

/** A block of the list's rows; `built` while it holds them. */
export type Chunk = { first: number; built: boolean; box: HTMLElement & { chunk: Chunk } };

export type Follower = { settle(): void; hold(): void; jump(): void; readonly on: boolean };
export type Texts = Record<string, import("../shared/words.js").Text>;
