"use strict";
/* Gets the data, and shows the page that the address names. */

const PAGES = {
  run: ["Run", RunPage], rollouts: ["Rollouts", RolloutsPage], prompts: ["Prompts", PromptsPage], compare: ["Compare", ComparePage],
  workers: ["Workers", WorkersPage], settings: ["Settings", SettingsPage], rollout: [null, RolloutPage],
};
/** Whether a page has something to show: of the live door only, or of a report of two runs. */
const isThere = (page, data) => (page === "workers" ? data.is_live : page === "compare" ? data.can_compare_runs || data.compared : page in PAGES);

const OLD_SECONDS = 7; // the server says every five how old what it tells is

function whereabouts(data) {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const page = isThere(path, data) ? path : "run";
  return { page, parameters: Object.fromEntries(new URLSearchParams(query || "")) };
}

/** The seconds since the epoch, every second where something goes on. */
function useNow(isLive) {
  const [now, setNow] = useState(Date.now() / 1000);
  useEffect(() => {
    if (!isLive) return undefined;
    const timer = setInterval(() => setNow(Date.now() / 1000), 1000);
    return () => clearInterval(timer);
  }, [isLive]);
  return now;
}

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
  const go = (page, parameters) => {
    history.replaceState(null, "", link(page, parameters));
    setPlace(whereabouts(data));
  };
  const change = (changed) => {
    const all = { ...settings, ...changed };
    keep(all);
    setSettings(all);
  };
  const shown = page === "rollout" ? "rollouts" : page;
  const isOld = connection.asOf !== null && now - connection.asOf > OLD_SECONDS;
  const Page = PAGES[page][1];
  const links = Object.entries(PAGES).filter(([key, [name]]) => name && isThere(key, data));
  return html`<header><div class="bar"><div class="title"><h1>${data.run.id}</h1>${data.run.outcome && html`<span class="status ${data.run.outcome}">${data.run.outcome}</span>`}<span class="muted">${[data.run.algorithm, data.run.start !== null && moment(data.run.start), data.is_redacted && "redacted: texts are replaced by their lengths"].filter(Boolean).join(" · ")}</span></div>
      <nav aria-label="Pages">${links.map(([key, [name]]) => html`<a href=${link(key)} aria-current=${key === shown ? "page" : undefined}>${name}</a>`)}</nav></div>
      ${isLive && connection.lost !== null && html`<p class="lost" role="alert">${connection.lost} What is shown is from before; trying again…</p>`}</header>
    <main><${Page} key=${page === "rollout" ? parameters.id : page} data=${data} source=${source} revision=${revision} parameters=${parameters} go=${go} now=${now} settings=${settings} change=${change} /></main>
    <footer>${isLive ? html`<span class="dot ${connection.lost !== null || isOld ? "off" : "on"}"></span>${connection.lost !== null ? "not connected" : isOld ? `live, as of ${clock(connection.asOf)}: a large store takes a while to read` : "live"}${data.is_copy && " · read only: the run is not disturbed"}` : "Made by Lightning Core. Nothing in this file is loaded from elsewhere."}</footer>`;
}

/** Asks for the key of the store. It is kept until the tab is closed. */
function KeyForm({ error, onKey }) {
  const [key, setKey] = useState("");
  const send = (event) => {
    event.preventDefault();
    if (key.trim()) onKey(key.trim());
  };
  return html`<main class="door"><form class="card" onSubmit=${send}><h1>This store wants a key</h1>
    <p class="muted">It is that of the variable AGL_KEY, and is kept in this tab only.</p>
    ${error && html`<${Problem} error=${error} />`}
    <div class="filters"><input type="password" aria-label="Key" autocomplete="off" autofocus value=${key} onInput=${(event) => setKey(event.target.value)} /><button type="submit">Open</button></div></form></main>`;
}

function LiveApp({ source }) {
  const [opened, setOpened] = useState(0);
  const [revision, setRevision] = useState(0);
  const [connection, setConnection] = useState(/** @type {Connection} */ ({ lost: null, asOf: null }));
  const { value, error } = useAsked(() => source.run(), [opened], revision);
  const last = useRef(null);
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

/** Add what the server tells of a run and the file does not have. */
function withChoices(data) {
  const rewards = data.rollouts.map((each) => each.reward).filter((each) => each !== null);
  return {
    ...data, modes: [...new Set(data.rollouts.map((each) => each.mode || "other"))].sort(), statuses: [...new Set(data.rollouts.map((each) => each.status))].sort(),
    reward_range: rewards.length ? [rewards.reduce((a, b) => Math.min(a, b)), rewards.reduce((a, b) => Math.max(a, b))] : [null, null],
  };
}

document.documentElement.dataset.theme = kept().theme;
const embedded = JSON.parse(document.getElementById("data").textContent);
render(
  embedded === null
    ? html`<${LiveApp} source=${new LiveSource()} />`
    : html`<${Shell} data=${withChoices(embedded)} source=${new FileSource(embedded)} revision=${0} connection=${{ lost: null, asOf: null }} />`,
  document.getElementById("app"),
);
