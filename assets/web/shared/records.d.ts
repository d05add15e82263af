// The records of a run, written by python -m tools.record_types from specviz/records/runs.py.

export type Candidates = {
  p: ([number, number])[];
  q?: ([number, number])[];
  residual?: ([number, number])[];
  p_raw?: ([number, number])[];
  q_raw?: ([number, number])[];
  reach?: number | null;
  allowed?: number | null;
  allowed_mass?: number | null;
};

export type DraftedToken = {
  id: number | null;
  text: string;
  parent: number;
  p: number | null;
  q: number | null;
  p_raw: number | null;
  q_raw: number | null;
  u: number | null;
  accept_prob: number | null;
  outcome: "accepted" | "rejected" | "discarded";
  draft_u?: number | null;
  p_left?: number | null;
  source?: string | null;
};

export type LengthChoice = {
  depth: number;
  speed?: number | null;
  kept?: number | null;
  cost?: number | null;
  behind?: boolean;
};

export type NextToken = {
  id: number | null;
  text: string;
  kind: "recovered" | "bonus";
  u: number | null;
  prob: number | null;
  below?: number | null;
  line?: ([number, number, number])[];
};

export type Seconds = {
  draft: number;
  verify: number;
  accept: number;
  total: number;
  models: number;
  prefill?: number;
};

export type Round = {
  index: number;
  drafted: DraftedToken[];
  next: NextToken;
  emitted: (number | null)[];
  pieces: string[];
  top: Candidates[];
  seconds: Seconds | null;
  stop_reason?: "eos" | "length" | "context" | "stop_string" | "grammar" | "stopped" | null;
  dropped?: number;
  confidence?: number | null;
  distance?: number | null;
  choice?: LengthChoice | null;
  read_again?: number;
};
