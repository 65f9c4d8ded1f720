"use strict";
/* Gets the data, and shows the page that the address names. */

/** @type {Record<string, [string | null, (given: PageGiven) => object]>} */
const PAGES = {
  run: ["Run", RunPage], rollouts: ["Rollouts", RolloutsPage], prompts: ["Prompts", PromptsPage], compare: ["Compare", ComparePage],
  workers: ["Workers", WorkersPage], settings: ["Settings", SettingsPage], rollout: [null, RolloutPage],
};
/**
 * Whether a page has something to show: of the live door only, or of a report of two runs.
 * @param {string} page
 * @param {Shown} data
 */
const isThere = (page, data) => (page === "workers" ? data.is_live : page === "compare" ? data.can_compare_runs || data.compared : page in PAGES);

const OLD_SECONDS = 7; // the server says every five how old what it tells is

/** @param {Shown} data */
function whereabouts(data) {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const page = isThere(path, data) ? path : "run";
  return { page, parameters: Object.fromEntries(new URLSearchParams(query || "")) };
}

/**
 * The seconds since the epoch, every second where something goes on.
 * @param {boolean} isLive
 */
function useNow(isLive) {
  const [now, setNow] = useState(Date.now() / 1000);
  useEffect(() => {
    if (!isLive) return undefined;
    const timer = setInterval(() => setNow(Date.now() / 1000), 1000);
    return () => clearInterval(timer);
  }, [isLive]);
  return now;
}

/** @param {{data: Shown, source: Source, revision: number, connection: Connection}} given */
function Shell({ data, source, revision, connection }) {
  const isLive = !!data.is_live;
  const [{ page, parameters }, setPlace] = useState(() => whereabouts(data));
  const [settings, setSettings] = useState(kept);
  const now = useNow(isLive && (data.run.end === null || page === "workers"));
  useEffect(() => {
    const follow = () => setPlace(whereabouts(data));
    addEventListener("hashchange", follow);
    follow(); // it may have changed since the page was drawn
    return () => removeEventListener("hashchange", follow);
  }, []);
  useEffect(() => scrollTo(0, 0), [page, parameters.id]);
  useEffect(() => {
    document.documentElement.dataset.theme = settings.theme;
  }, [settings.theme]);
  useEffect(() => {
    document.title = `${data.run.id}${data.run.algorithm ? ` · ${data.run.algorithm}` : ""}`;
  }, [data.run.id]);
  /** @type {PageGiven["go"]} */
  const go = (page, parameters) => {
    history.replaceState(null, "", link(page, parameters));
    setPlace(whereabouts(data));
  };
  /** @type {PageGiven["change"]} */
  const change = (changed) => {
    const all = { ...settings, ...changed };
    keep(all);
    setSettings(all);
  };
  const shown = page === "rollout" ? "rollouts" : page;
  const { lost, asOf } = connection;
  const Page = PAGES[page][1];
  const links = Object.entries(PAGES).filter(([key, [name]]) => name && isThere(key, data));
  return html`<header><div class="bar"><div class="title"><h1>${data.run.id}</h1>${data.run.outcome && html`<span class="status ${data.run.outcome}">${data.run.outcome}</span>`}<span class="muted">${[data.run.algorithm, data.run.start !== null && moment(data.run.start), data.is_redacted && "redacted: texts are replaced by their lengths"].filter(Boolean).join(" · ")}</span></div>
      <nav aria-label="Pages">${links.map(([key, [name]]) => html`<a href=${link(key)} aria-current=${key === shown ? "page" : undefined}>${name}</a>`)}</nav></div>
      ${isLive && lost !== null && html`<p class="lost" role="alert">${lost} What is shown is from before; trying again…</p>`}</header>
    <main><${Page} key=${page === "rollout" ? parameters.id : page} data=${data} source=${source} revision=${revision} parameters=${parameters} go=${go} now=${now} settings=${settings} change=${change} /></main>
    <footer>${isLive ? html`<${State} lost=${lost} asOf=${asOf} now=${now} />${data.is_copy && " · read only: the run is not disturbed"}` : "Made by Lightning Core. Nothing in this file is loaded from elsewhere."}</footer>`;
}

/**
 * Whether what is shown is of now.
 * @param {Connection & {now: number}} given
 */
function State({ lost, asOf, now }) {
  if (lost !== null) return html`<span class="dot off"></span>not connected`;
  if (asOf === null || now - asOf < OLD_SECONDS) return html`<span class="dot on"></span>live`;
  return html`<span class="dot off"></span>live, as of ${clock(asOf)}: a large store takes a while to read`;
}

/**
 * Asks for the key of the store. It is kept until the tab is closed.
 * @param {{error: Error | null, onKey: (key: string) => void}} given
 */
function KeyForm({ error, onKey }) {
  const [key, setKey] = useState("");
  /** @param {Event} event */
  const send = (event) => {
    event.preventDefault();
    if (key.trim()) onKey(key.trim());
  };
  return html`<main class="door"><form class="card" onSubmit=${send}><h1>This store wants a key</h1>
    <p class="muted">It is that of the variable AGL_KEY, and is kept in this tab only.</p>
    ${error && html`<${Problem} error=${error} />`}
    <div class="filters"><input type="password" aria-label="Key" autocomplete="off" autofocus value=${key} onInput=${(event) => setKey(event.target.value)} /><button type="submit">Open</button></div></form></main>`;
}

/** @param {{source: LiveSource}} given */
function LiveApp({ source }) {
  const [opened, setOpened] = useState(0);
  const [revision, setRevision] = useState(0);
  const [connection, setConnection] = useState(/** @type {Connection} */ ({ lost: null, asOf: null }));
  const { value, error } = useAsked(() => source.run(), [opened], revision);
  const last = useRef(/** @type {Shown | null} */ (null));
  if (value) last.current = value;
  useEffect(() => source.follow({
    changed: () => setRevision((known) => known + 1),
    connected: (age) => setConnection({ lost: null, asOf: Date.now() / 1000 - age }),
    lost: (error) => setConnection(({ asOf }) => ({ lost: error.message, asOf })),
  }), [opened]);
  const isLost = connection.lost !== null;
  useEffect(() => setRevision((known) => known + 1), [isLost]);
  if (error instanceof KeyWanted) return html`<${KeyForm} error=${source.key ? error : null} onKey=${(key) => (source.setKey(key), setOpened(opened + 1))} />`;
  if (!last.current) return html`<main class="door">${error ? html`<${Problem} error=${error} />` : html`<${Loading} what="the run" />`}</main>`;
  return html`<${Shell} data=${last.current} source=${source} revision=${revision} connection=${connection} />`;
}

/**
 * Add what the server tells of a run and the file does not have.
 * @param {Embedded} data
 * @returns {Shown}
 */
function withChoices(data) {
  const rewards = data.rollouts.map((each) => each.reward).filter((each) => each !== null);
  return {
    ...data, modes: [...new Set(data.rollouts.map((each) => each.mode || "other"))].sort(), statuses: [...new Set(data.rollouts.map((each) => each.status))].sort(),
    reward_range: rewards.length ? [rewards.reduce((a, b) => Math.min(a, b)), rewards.reduce((a, b) => Math.max(a, b))] : [null, null],
  };
}

document.documentElement.dataset.theme = kept().theme;
const embedded = JSON.parse(document.getElementById("data")?.textContent ?? "null");
render(
  embedded === null
    ? html`<${LiveApp} source=${new LiveSource()} />`
    : html`<${Shell} data=${withChoices(embedded)} source=${new FileSource(embedded)} revision=${0} connection=${{ lost: null, asOf: null }} />`,
  document.getElementById("app"),
);
