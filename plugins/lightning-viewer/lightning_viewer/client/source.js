"use strict";
/* Where the pages' data comes from: the file itself, or the server. Both answer the same questions. */

/**
 * What is in the file.
 * @implements {Pick<Source, "rollouts" | "rollout" | "trace" | "samples">}
 */
class FileSource {
  /** @param {Embedded} data */
  constructor(data) {
    this.data = data;
    this.traced = Object.keys(data.traces);
  }

  /**
   * @param {Question} question
   * @returns {PageOfRollouts}
   */
  rollouts({ mode, status, version, text, order, traced, from, to, sample, limit, offset }) {
    const { data } = this, needle = text.toLowerCase();
    const found = data.rollouts.filter((each) =>
      (!mode || (each.mode || "other") === mode) && (!status || each.status === status) &&
      (!version || each.resources === Number(version)) && (!traced || data.traces[each.id]) &&
      (!from || (each.reward !== null && each.reward >= Number(from))) && (!to || (each.reward !== null && each.reward <= Number(to))) &&
      (!sample || each.sample === Number(sample)) &&
      (!needle || `${each.id} ${each.failure || ""} ${JSON.stringify(data.inputs[each.sample])}`.toLowerCase().includes(needle)));
    const reward = (/** @type {Row} */ each) => each.reward ?? -1e300, badness = (/** @type {Row} */ each) => each.reward ?? (each.failure === null ? 1e300 : -1e300);
    /** @type {Record<string, (a: Row, b: Row) => number>} */
    const orders = {
      worst: (a, b) => badness(a) - badness(b) || a.start - b.start, best: (a, b) => reward(b) - reward(a) || a.start - b.start,
      newest: (a, b) => b.start - a.start, oldest: (a, b) => a.start - b.start, slowest: (a, b) => (b.seconds ?? 0) - (a.seconds ?? 0),
    };
    found.sort(orders[order]);
    return { all: data.rollouts.length + data.left_out.rollouts, total: found.length, rollouts: found.slice(offset, offset + limit), inputs: data.inputs };
  }

  /**
   * @param {string} id
   * @returns {RolloutData}
   */
  rollout(id) {
    const found = this.data.rollouts.find((each) => each.id === id);
    if (!found) throw new Error(`This report has no rollout ${id}.${this.data.left_out.rollouts ? ` It has no room for all; see it with: agl show ${this.data.run.id} ${id}` : ""}`);
    const place = this.traced.indexOf(id);
    return {
      ...found, input: this.data.inputs[found.sample], times_run: this.data.rollouts.filter((each) => each.sample === found.sample).length,
      previous: place > 0 ? this.traced[place - 1] : null, next: place >= 0 ? this.traced[place + 1] : null,
    };
  }

  /**
   * @param {string} id
   * @returns {TraceData | null}
   */
  trace(id) {
    return this.data.traces[id] || null;
  }

  /**
   * @param {number} before
   * @param {number} after
   * @returns {RunComparison}
   */
  samples(before, after) {
    const known = this.data.version_changes[`${before}-${after}`];
    if (!known) throw new Error("This file compares versions with their parent, the first and the best only. See others with agl compare or agl ui.");
    return known;
  }
}

/** The server asks for a key, or does not take the one that it was given. */
class KeyWanted extends Error {}

const KEY = "agl-key";
const EVENTS = "agl-events"; // the lock of the tab that listens, and the channel to the others
const SILENCE_SECONDS = 15; // the server says something every five
const LONGEST_PAUSE_SECONDS = 5;

/** Return when the tab is shown. */
function untilShown() {
  return new Promise((/** @type {(value?: undefined) => void} */ resolve) => {
    const look = () => {
      if (document.visibilityState === "hidden") return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    look();
  });
}

/**
 * The server that the page comes from.
 * @implements {Source}
 */
class LiveSource {
  key = sessionStorage.getItem(KEY) || "";

  /** @param {string} key */
  setKey(key) {
    this.key = key;
    sessionStorage.setItem(KEY, key);
  }

  /**
   * @param {string} path
   * @param {{method?: string, signal?: AbortSignal}} options
   */
  async fetch(path, options = {}) {
    /** @type {Record<string, string>} */
    const headers = this.key ? { authorization: `Bearer ${this.key}` } : {};
    let answer;
    try {
      answer = await fetch(path, { headers, cache: "no-store", ...options });
    } catch {
      throw new Error("The server cannot be reached.");
    }
    if (answer.ok) return answer;
    const told = await answer.json().catch(() => ({}));
    const message = told.message || `The server answered ${answer.status}.`;
    throw answer.status === 401 ? new KeyWanted(message) : new Error(message);
  }

  /**
   * @param {string} path
   * @param {Record<string, any>} query
   * @returns {Promise<any>}
   */
  async ask(path, query = {}) {
    const given = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== undefined));
    return (await this.fetch(`/ui/${path}${given.size ? `?${given}` : ""}`)).json();
  }

  /** @returns {Promise<Shown>} */
  run = async () => ({ ...(await this.ask("run")), is_live: true });
  /**
   * @param {Question} question
   * @returns {Promise<PageOfRollouts>}
   */
  rollouts = ({ traced, ...query }) => this.ask("rollouts", query);
  /**
   * @param {string} id
   * @returns {Promise<RolloutData>}
   */
  rollout = (id) => this.ask(`rollouts/${encodeURIComponent(id)}`);
  /**
   * @param {string} id
   * @param {string} offset
   * @returns {Promise<TraceData>}
   */
  trace = (id, offset) => this.ask(`rollouts/${encodeURIComponent(id)}/trace`, { offset });
  /**
   * @param {number} before
   * @param {number} after
   * @returns {Promise<RunComparison>}
   */
  samples = (before, after) => this.ask("samples", { before, after });
  /** @returns {Promise<RunChoice[]>} */
  runs = () => this.ask("runs");
  /**
   * @param {Record<string, string>} query
   * @returns {Promise<RunComparison>}
   */
  compare = (query) => this.ask("compare", query);
  /** @returns {Promise<WorkerData[]>} */
  workers = () => this.ask("workers");
  /**
   * @param {string} id
   * @param {string} action
   */
  act = (id, action) => this.fetch(`/ui/rollouts/${encodeURIComponent(id)}/${action}`, { method: "POST" });

  /**
   * Tell what changes, until it is stopped. A lost connection is made again. Browsers open only six connections to one
   * server, so of all tabs one that is shown listens, and tells the others; where the browser has no locks, as for a
   * page over plain HTTP from another machine, each tab that is shown listens.
   * @param {Listener} listener
   * @returns {() => void} Stops it.
   */
  follow(listener) {
    const stop = new AbortController(), others = new BroadcastChannel(EVENTS);
    let revision = 0;
    /** @param {Heard} said */
    const hear = ({ news }) => {
      if (!news) return listener.lost(new Error("The connection is lost."));
      revision = news.revision;
      if (news.failure) listener.lost(new Error(`The store cannot be read: ${news.failure.replace(/\.?$/, ".")}`));
      else listener.connected(news.age ?? 0);
      listener.changed();
    };
    /** @param {Heard} said */
    const tell = (said) => (hear(said), others.postMessage(said));
    others.onmessage = ({ data }) => hear(data);

    /** @param {AbortSignal} signal Ends it. */
    const listen = async (signal) => {
      const ending = new AbortController(), end = () => ending.abort();
      signal.addEventListener("abort", end);
      let silence = setTimeout(end, SILENCE_SECONDS * 1000);
      try {
        const answer = await this.fetch(`/ui/events?after=${revision}`, { signal: ending.signal });
        let text = "";
        if (!answer.body) return;
        const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
        for (;;) {
          const { done, value } = await reader.read();
          if (done) return;
          clearTimeout(silence);
          silence = setTimeout(end, SILENCE_SECONDS * 1000);
          const parts = (text + value).split("\n\n");
          text = parts.pop() ?? "";
          for (const part of parts) tell({ news: JSON.parse(part.replace(/^data: /, "")) });
        }
      } finally {
        clearTimeout(silence);
        signal.removeEventListener("abort", end);
      }
    };
    /** @param {AbortSignal} signal Ends it. */
    const lead = async (signal) => {
      for (let pause = 0.5; !signal.aborted; pause = Math.min(pause * 2, LONGEST_PAUSE_SECONDS)) {
        const began = Date.now();
        try {
          await listen(signal);
        } catch (error) {
          if (error instanceof KeyWanted) return;
        }
        if (signal.aborted) return;
        tell({ news: null });
        if (Date.now() - began > SILENCE_SECONDS * 1000) pause = 0.5;
        await new Promise((wake) => setTimeout(wake, pause * 1000));
      }
    };
    const run = async () => {
      for (let isFirst = true; !stop.signal.aborted; isFirst = false) {
        await untilShown();
        if (stop.signal.aborted) return;
        if (!isFirst) listener.changed(); // much may have happened meanwhile
        const hidden = new AbortController();
        const hide = () => document.visibilityState === "hidden" && hidden.abort();
        document.addEventListener("visibilitychange", hide);
        const signal = AbortSignal.any([stop.signal, hidden.signal]);
        try {
          if (navigator.locks) await navigator.locks.request(EVENTS, { signal }, () => lead(signal));
          else await lead(signal);
          if (!signal.aborted) return; // it takes a key
        } catch (error) {
          if (!signal.aborted) throw error;
        } finally {
          document.removeEventListener("visibilitychange", hide);
        }
      }
    };
    run();
    return () => {
      stop.abort();
      others.close();
    };
  }
}

/**
 * Ask a source, again when the keys change, and when the revision does: then without a pause in what is shown, and
 * never twice at once.
 * @template T
 * @param {() => Answer<T>} ask
 * @param {unknown[]} keys
 * @param {number} revision
 * @returns {{value?: T, error?: Error}}
 */
function useAsked(ask, keys, revision) {
  const [state, setState] = useState(/** @type {{value?: T, error?: Error}} */ ({}));
  const asking = useRef({ ask, token: 0, isBusy: false, again: false, revision }).current;
  asking.ask = ask;
  const load = (/** @type {number} */ token) => {
    asking.isBusy = true;
    asking.again = false;
    Promise.resolve().then(() => asking.ask()).then(
      (value) => token === asking.token && setState({ value }),
      (error) => token === asking.token && setState({ error }),
    ).finally(() => {
      if (token !== asking.token) return;
      asking.isBusy = false;
      if (asking.again) load(token);
    });
  };
  useEffect(() => {
    load(++asking.token);
  }, keys);
  useEffect(() => {
    if (asking.revision === revision) return;
    asking.revision = revision;
    if (asking.isBusy) asking.again = true;
    else load(asking.token);
  }, [revision]);
  useEffect(() => () => { asking.token++; }, []);
  return state;
}
