/* The shapes that the pages' scripts share, for tsc alone: the JSON of the Python side, and what Preact gives. */

type Json = string | number | boolean | null | Json[] | { [name: string]: Json };
type Mode = string | null;

interface Estimate {
  mean: number;
  low: number | null;
  high: number | null;
  n: number;
  lost: number;
}

interface Difference {
  before: number;
  after: number;
  difference: number;
  low: number | null;
  high: number | null;
  n: number;
  lost: number;
}

interface Used {
  calls: number;
  input_tokens: number | null;
  output_tokens: number | null;
  cost: number | null;
}

interface Version {
  id: string;
  created: number;
  parent: number | null;
  texts: Record<string, string>;
  is_best: boolean;
  rewards: (Estimate & { mode: Mode })[];
}

/** A version in the drawing of the lineage. */
interface Drawn {
  parent: number | null;
  is_best: boolean;
  name: string;
  href: string;
  mean: number | null;
}

interface Run {
  id: string;
  algorithm: string | null;
  outcome: string | null;
  error: string | null;
  start: number | null;
  end: number | null;
  resumed: number;
  config_file: string | null;
  config: Record<string, Json>;
  versions: Record<string, string>;
  python: string | null;
}

/** A run as a whole: what both the file and the server say of it. */
interface Summary {
  run: Run;
  counts: { succeeded: number; failed: number; cancelled: number; unfinished: number; retried: number; unrewarded: number };
  failures: { cause: string; count: number; example: string; where: string }[];
  usage: { agent: Used; algorithm: Used } | null;
  budget: { limits: Record<string, number>; used: Record<string, number>; ended_by: string | null } | null;
  comparison: { mode: Mode; kept_back: boolean; before: Estimate | null; after: Estimate | null; difference: Difference | null } | null;
  curve: { step: number | null; metrics: Record<string, number | null> }[];
  steps: (Estimate & { step: number; mode: Mode })[];
  resources: Version[];
}

/** What the pages show: of the file with `withChoices`. */
interface Shown extends Summary {
  modes: string[];
  statuses: string[];
  reward_range: [number | null, number | null];
  training_steps?: number[];
  is_live?: boolean;
  is_copy?: boolean;
  can_act?: boolean;
  can_compare_runs?: boolean;
  is_redacted?: boolean;
  compared?: RunComparison;
  /** Of a file: how many it does not have, and what it has. */
  left_out?: { traces: number; rollouts: number };
  rollouts?: Row[];
  traces?: Record<string, TraceData>;
}

/** What is in a file. */
interface Embedded extends Summary {
  rollouts: Row[];
  inputs: Json[];
  traces: Record<string, TraceData>;
  left_out: { traces: number; rollouts: number };
  version_changes: Record<string, RunComparison>;
  is_redacted?: boolean;
  compared?: RunComparison;
}

interface Row {
  id: string;
  sample: number;
  mode: Mode;
  resources: number | null;
  step: number | null;
  status: string;
  reward: number | null;
  start: number;
  seconds: number | null;
  attempts: number;
  calls: number;
  failure: string | null;
}

interface RolloutData extends Row {
  input: Json;
  times_run: number;
  tries?: { attempt_id: string; status: string; worker_id: string | null; start_time: number; end_time: number | null }[];
  previous?: string | null;
  next?: string | null;
}

interface Question {
  mode: string;
  status: string;
  version: string;
  text: string;
  order: string;
  traced: string;
  from: string;
  to: string;
  step: string;
  sample: string;
  limit: number;
  offset: number;
}

/** Inputs by the numbers of samples. */
type Inputs = Record<number, Json>;

interface PageOfRollouts {
  all: number;
  total: number;
  rollouts: Row[];
  inputs: Inputs;
}

interface Side {
  label: string;
  run: string;
  version: number | null;
  is_best: boolean;
  estimate: Estimate | null;
}

interface RunComparison {
  before: Side;
  after: Side;
  mode: Mode;
  is_chosen_on: boolean;
  difference: Difference | null;
  better: number;
  worse: number;
  same: number;
  unpaired: number;
  changed: number;
  samples: {
    input: Json;
    before: number | null;
    after: number | null;
    difference: number | null;
    before_rollouts: string[];
    after_rollouts: string[];
  }[];
}

interface RunChoice {
  id: string;
  algorithm: string;
  start: number;
}

interface WorkerData {
  worker_id: string;
  status: string;
  rollout: string | null;
  input: Json;
  last_heartbeat_time: number | null;
  last_busy_time: number | null;
  last_idle_time: number | null;
  heartbeat_stats: Record<string, any> | null;
}

interface Said {
  role: string;
  text: string;
  reasoning: string;
  tools: { name: string; arguments: string }[];
}

interface TokenData {
  prompt: number;
  response: number;
  ids: number[];
  logprobs: number[] | null;
  /** The training row that has the answer, from 1; null for none, and `why`. */
  row: number | null;
  why: string | null;
  /** Whether an earlier call began the row. */
  goes_on: boolean;
  /** How many tokens of the row come before the answer and after the one before; and the last of them. */
  masked: number;
  before: number[];
}

interface Call {
  span: string;
  model: string | null;
  purpose: string | null;
  start: number;
  end: number;
  error: string | null;
  finish: string | null;
  input_tokens: number | null;
  output_tokens: number | null;
  repeated: number;
  messages: Said[];
  answers: Said[];
  tokens: TokenData | null;
}

interface SpanData {
  id: string;
  parent: string | null;
  name: string;
  kind: "call" | "reward" | "message" | "span";
  start: number | null;
  end: number | null;
  failed: boolean;
  text: string | null;
  rewards: { name: string; value: number }[];
  late: boolean;
  raised: { type: string; message: string; trace: string }[];
  attributes: Record<string, string | number>;
}

interface TraceData {
  calls: Call[];
  rows: { trained: number; masked: number }[];
  spans: SpanData[];
  total: number;
  next: number | null;
}

type Answer<T> = T | Promise<T>;

/** Where the pages' data comes from. What only a server tells is not in the file. */
interface Source {
  rollouts(question: Question): Answer<PageOfRollouts>;
  rollout(id: string): Answer<RolloutData>;
  trace(id: string, offset: string): Answer<TraceData | null>;
  samples(before: number, after: number): Answer<RunComparison>;
  runs(): Answer<RunChoice[]>;
  compare(query: Record<string, string>): Answer<RunComparison>;
  workers(): Answer<WorkerData[]>;
  act(id: string, action: string): Promise<unknown>;
}

/** What the tab that listens tells the others; without news the connection is lost. */
interface Heard {
  news: News | null;
}

/** What a server's stream of events says. */
interface News {
  revision: number;
  age: number | null;
  failure: string | null;
}

interface Listener {
  changed(): void;
  /** The server tells; changes of the last `age` seconds it may not know yet. */
  connected(age: number): void;
  lost(error: Error): void;
}

interface Connection {
  lost: string | null;
  asOf: number | null;
}

interface Settings {
  theme: string;
  zone: string;
}

/** What stands behind the question mark of an address. */
type Place = Record<string, string>;

/** What each page is given. */
interface PageGiven {
  data: Shown;
  source: Source;
  revision: number;
  parameters: Place;
  go: (page: string, parameters: Record<string, string | number>) => void;
  now: number;
  settings: Settings;
  change: (changed: Partial<Settings>) => void;
}

interface Toggles {
  messages: boolean;
  tools: boolean;
  reasoning: boolean;
  tokens: boolean;
}

interface Point {
  x: number;
  y: number;
  low?: number | null;
  high?: number | null;
  title: string;
}

interface Measured {
  name: string;
  kind: string;
  mean: number;
  low: number | null;
  high: number | null;
}

/** What a template takes; what its handlers are given is not known here. */
type Value = ((...given: any[]) => unknown) | object | string | number | boolean | null | undefined;

declare const htmPreact: {
  html(strings: TemplateStringsArray, ...values: Value[]): object;
  render(what: object, where: Element | null): void;
  useState<T>(initial: T | (() => T)): [T, (next: T | ((before: T) => T)) => void];
  useMemo<T>(compute: () => T, keys: unknown[]): T;
  useEffect(effect: () => void | (() => void), keys?: unknown[]): void;
  useRef<T>(initial: T): { current: T };
};
