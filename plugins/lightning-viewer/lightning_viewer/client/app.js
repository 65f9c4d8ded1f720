"use strict";
/* Reads the data, and shows the page that the address names. */

const PAGES = { run: ["Run", RunPage], rollouts: ["Rollouts", RolloutsPage], prompts: ["Prompts", PromptsPage], rollout: [null, RolloutPage] };

function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { page: path in PAGES ? path : "run", parameters: Object.fromEntries(new URLSearchParams(query || "")) };
}

function App({ data }) {
  const [{ page, parameters }, setPlace] = useState(place);
  useEffect(() => {
    const follow = () => setPlace(place());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  useEffect(() => scrollTo(0, 0), [page, parameters.id]);
  const go = (page, parameters) => {
    history.replaceState(null, "", link(page, parameters));
    setPlace(place());
  };
  const shown = page === "rollout" ? "rollouts" : page;
  const Page = PAGES[page][1];
  return html`<header><div class="bar"><div class="title"><h1>${data.run.id}</h1><span class="status ${data.run.outcome}">${data.run.outcome}</span><span class="muted">${data.run.algorithm} · ${moment(data.run.start)}</span></div>
      <nav aria-label="Pages">${Object.entries(PAGES).filter(([, [name]]) => name).map(([key, [name]]) => html`<a href=${link(key)} aria-current=${key === shown ? "page" : undefined}>${name}</a>`)}</nav></div></header>
    <main><${Page} data=${data} parameters=${parameters} go=${go} /></main>
    <footer>Made by Lightning Core. Nothing in this file is loaded from elsewhere.</footer>`;
}

render(html`<${App} data=${JSON.parse(document.getElementById("data").textContent)} />`, document.getElementById("app"));
