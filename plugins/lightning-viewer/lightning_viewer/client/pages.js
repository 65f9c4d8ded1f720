"use strict";
/* The pages, but for that of one rollout. */

/**
 * @param {string} page
 * @param {Record<string, string | number | null | undefined>} parameters
 */
const link = (page, parameters = {}) => {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `#/${page}${query ? `?${query}` : ""}`;
};
const PAGE_SIZE = 100;
/** @param {string} version */
const place = (version) => Number(version.slice(1)) - 1;
/** @param {number | null | undefined} index */
const version = (index) => (index === null || index === undefined ? "–" : `v${index + 1}`);

// The run

/**
 * @param {Shown} data
 * @returns {{name: string, points: Point[]} | null}
 */
function curvePoints(data) {
  const reports = data.curve.filter((each) => each.step !== null);
  const names = ["val_reward", "train_reward", "reward"];
  const name = names.find((each) => reports.filter((report) => typeof report.metrics[each] === "number").length > 1);
  if (!name) return stepPoints(data);
  const byStep = new Map();
  for (const { step, metrics } of data.curve) {
    if (typeof metrics[name] !== "number") continue;
    if (step !== null) byStep.set(step, metrics);
    else if (!byStep.size) byStep.set(0, metrics); // before the first step; a later one sums up the run
  }
  const points = [...byStep].sort((a, b) => a[0] - b[0]).map(([step, metrics]) => ({
    x: step, y: metrics[name], low: metrics[`${name}_low`] ?? null, high: metrics[`${name}_high`] ?? null,
    title: `step ${step}: ${number(metrics[name])}${typeof metrics[`${name}_low`] === "number" ? ` (95% ${number(metrics[`${name}_low`])} to ${number(metrics[`${name}_high`])})` : ""}`,
  }));
  return { name, points };
}

/**
 * The curve of an algorithm that reports no steps, from its rollouts.
 * @param {Shown} data
 */
function stepPoints(data) {
  for (const mode of ["val", "train"]) {
    const steps = (data.steps || []).filter((each) => each.mode === mode);
    if (steps.length > 1) return { name: `${mode}_reward`, points: steps.map((each) => ({ x: each.step, y: each.mean, low: each.low, high: each.high, title: `step ${each.step}: ${number(each.mean)}` })) };
  }
  return null;
}

/** @param {{data: Shown}} given */
function Verdict({ data }) {
  const found = data.comparison;
  if (!found) return html`<section class="card verdict"><h2>Reward</h2><p class="muted">${data.is_live && data.run.end === null ? "No rollout has given a reward yet." : "No rollout of this run gave a reward."}</p></section>`;
  const { difference } = found;
  const before = difference ? { mean: difference.before } : found.before;
  const after = difference ? { mean: difference.after } : found.after;
  const measured = found.after || found.before;
  const rows = [found.before && { name: found.after ? "before" : "the first", kind: "before", ...found.before }, found.after && { name: "best", kind: "after", ...found.after }].filter(Boolean);
  return html`<section class="card verdict">
    <h2>Reward on ${samplesName(found.mode)}${found.kept_back && " that the search did not use"}</h2>
    <p class="big">${before && html`<span class=${after ? "old" : ""}>${number(before.mean)}</span>`}${before && after && html`<span class="arrow" aria-label="to">→</span>`}${after && html`<span>${number(after.mean)}</span>`}</p>
    ${difference && html`<${Difference} found=${difference} />`}
    ${!difference && measured && html`<p class="note">${measured.low !== null && measured.high !== null && `95% ${number(measured.low)} to ${number(measured.high)}, `}${samplesTold(measured)}</p>`}
    ${rows.length > 0 && html`<${Intervals} rows=${rows} />`}
    ${found.mode !== "test" && !found.kept_back && found.after && html`<p class="note">The best was chosen on these samples, which flatters it, so there is no interval.${data.run.outcome !== "running" && " Give a test_dataset to measure it on others."}</p>`}
  </section>`;
}

/** @type {("succeeded" | "failed" | "cancelled" | "unfinished")[]} */
const STATUSES = ["succeeded", "failed", "cancelled", "unfinished"];

/** @param {{data: Shown, now: number}} given */
function Tiles({ data, now }) {
  const { counts, usage, budget, run } = data;
  const until = run.end ?? (run.outcome === "running" ? now : null);
  const used = usage ? [usage.agent, usage.algorithm] : [];
  /** @param {keyof Used} field */
  const sum = (field) => (used.some((each) => typeof each[field] === "number") ? used.reduce((total, each) => total + (each[field] || 0), 0) : null);
  const tiles = [
    ["duration", until === null ? null : duration(Math.max(0, until - (run.start ?? until)))],
    ["model calls", usage ? count(sum("calls")) : "–"],
    ["tokens", sum("input_tokens") === null ? null : `${count(sum("input_tokens"))} in, ${count(sum("output_tokens"))} out`],
    ["cost", sum("cost") === null ? null : `$${number(sum("cost"), 4)}`],
  ].filter(([, value]) => value !== null);
  const total = counts.succeeded + counts.failed + counts.cancelled + counts.unfinished;
  return html`<section class="card">
    <h2>Rollouts</h2>
    <p class="big">${count(total)}</p>
    <${Parts} parts=${STATUSES.map((name) => ({ name, count: counts[name] }))} />
    <ul class="legend">${STATUSES.filter((name) => counts[name]).map((name) => html`<li class=${name}><a href=${link("rollouts", name === "unfinished" ? { order: "newest" } : { status: name })}>${count(counts[name])} ${name}</a></li>`)}
      ${counts.unrewarded > 0 && html`<li>${count(counts.unrewarded)} succeeded without a reward</li>`}
      ${counts.retried > 0 && html`<li>${count(counts.retried)} took several attempts</li>`}</ul>
    <dl class="facts">${tiles.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
    ${budget && Object.entries(budget.limits).map(([name, limit]) => html`<div><dt>budget, ${name}</dt><dd>${number(budget.used[name] || 0, name === "usd" ? 4 : 0)} of ${number(limit, name === "usd" ? 2 : 0)}${budget.ended_by === name ? ", used up" : ""}</dd></div>`)}</dl>
  </section>`;
}

/** @param {{data: Shown}} given */
function Failures({ data }) {
  if (!data.failures.length) return null;
  return html`<section class="card wide"><h2>Why rollouts failed</h2><table class="plain"><tbody>
    ${data.failures.map((each) => html`<tr><td class="number">${count(each.count)}×</td><td><code>${each.cause}</code>${each.where && html`<div class="muted">${each.where}</div>`}</td><td class="end"><a href=${link("rollout", { id: each.example })}>an example</a></td></tr>`)}
  </tbody></table></section>`;
}

/** @param {{data: Shown}} given */
function Best({ data }) {
  const index = data.resources.findIndex((each) => each.is_best);
  if (index < 0) return null;
  const first = data.resources[0];
  return html`<section class="card wide"><h2>${index === 0 ? "The best is what it started from" : "The best found, against the first"}</h2>
    ${Object.entries(data.resources[index].texts).map(([name, text]) => html`<h3>${name}</h3><${Diff} before=${first.texts[name] ?? ""} after=${text} />`)}
    <p class="end"><a href=${link("prompts")}>${data.resources.length === 1 ? "The only version" : `All ${count(data.resources.length)} versions`}</a></p></section>`;
}

/** @param {{before: string, after: string}} given */
function Diff({ before, after }) {
  return html`<pre class="diff">${lineDiff(before, after).map(({ sign, text }) => html`<div class=${sign === "+" ? "added" : sign === "-" ? "removed" : ""}><span class="sign">${sign}</span>${text || " "}</div>`)}</pre>`;
}

/** @param {PageGiven} given */
function RunPage({ data, now }) {
  const curve = useMemo(() => curvePoints(data), [data]);
  return html`${data.run.error && html`<p class="alert">${data.run.error}</p>`}
    <div class="cards">
      <${Verdict} data=${data} /><${Tiles} data=${data} now=${now} />
      ${curve && html`<section class="card wide"><h2>${{ val_reward: "Validation reward", train_reward: "Training reward" }[curve.name] || "Reward"} by step</h2><${Curve} points=${curve.points} label="reward by step" /></section>`}
      <${Failures} data=${data} /><${Best} data=${data} />
      ${data.run.algorithm !== null && html`<section class="card wide"><h2>Made of</h2><dl class="facts">
        <div><dt>algorithm</dt><dd>${data.run.algorithm}</dd></div>
        ${data.run.config_file && html`<div><dt>config</dt><dd>${data.run.config_file}</dd></div>`}
        <div><dt>Python</dt><dd>${data.run.python}</dd></div>
        ${data.run.resumed > 0 && html`<div><dt>resumed</dt><dd>${count(data.run.resumed)}×</dd></div>`}
        ${Object.entries(data.run.versions).map(([name, each]) => html`<div><dt>${name}</dt><dd>${each}</dd></div>`)}
      </dl>
      ${Object.keys(data.run.config).length > 0 && html`<p class="end"><a href=${link("settings")}>The whole config</a></p>`}</section>`}
    </div>`;
}

// Rollouts


const ORDERS = { worst: "worst first", best: "best first", newest: "newest first", oldest: "oldest first", slowest: "slowest first" };

/** @param {{label: string, value: string, options: [string, string][], onChange: (value: string) => void}} given */
function Choice({ label, value, options, onChange }) {
  return html`<label>${label} <select value=${value} onChange=${(event) => onChange(event.target.value)}>
    ${options.map(([key, name]) => html`<option value=${key} selected=${key === value}>${name}</option>`)}</select></label>`;
}

/**
 * A field whose value is told when the typing pauses.
 * @param {{label: string, value: string, onChange: (value: string) => void, [attribute: string]: unknown}} given
 */
function Field({ label, value, onChange, ...rest }) {
  const [typed, setTyped] = useState(value), timer = useRef(0);
  useEffect(() => {
    if (!timer.current) setTyped(value); // else more was typed since
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const type = (/** @type {any} */ event) => {
    const now = event.target.value;
    setTyped(now);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      timer.current = 0;
      onChange(now);
    }, 250);
  };
  return html`<input aria-label=${label} placeholder=${label} value=${typed} onInput=${type} ...${rest} />`;
}

/** @param {PageGiven} given */
function RolloutsPage({ data, source, revision, parameters, go }) {
  const { mode = "", status = "", version: chosen = "", text = "", order = "worst", traced = "", from = "", to = "", step = "", sample = "" } = parameters;
  const set = (/** @type {Record<string, string | number>} */ change) => go("rollouts", { ...parameters, page: "", ...change });
  const page = Number(parameters.page) || 0, steps = data.training_steps ?? [];
  const { value, error } = useAsked(
    () => source.rollouts({ mode, status, version: chosen && String(place(chosen)), text, order, traced, from, to, step, sample, limit: PAGE_SIZE, offset: page * PAGE_SIZE }),
    [mode, status, chosen, text, order, traced, from, to, step, sample, page], revision);
  const range = rangeOf(data.reward_range);
  const leftOut = data.left_out ?? { traces: 0, rollouts: 0 }, hasTraces = leftOut.traces === 0;
  const isFiltered = [mode, status, chosen, text, traced, from, to, step, sample].some(Boolean);
  return html`<div class="filters" role="search">
      ${data.modes.length > 1 && html`<${Choice} label="Samples" value=${mode} options=${[["", "all"], ...data.modes.map((each) => [each, modeName(each)])]} onChange=${(mode) => set({ mode })} />`}
      <${Choice} label="Status" value=${status} options=${[["", "all"], ...data.statuses.map((each) => [each, each])]} onChange=${(status) => set({ status })} />
      ${data.resources.length > 1 && html`<${Choice} label="Version" value=${chosen} options=${[["", "all"], ...data.resources.map((each, i) => [version(i), `${version(i)}${each.is_best ? ", the best" : ""}`])]} onChange=${(version) => set({ version })} />`}
      ${steps.length > 1 && html`<${Choice} label="Step" value=${step} options=${[["", "all"], ...steps.map((each) => [String(each), String(each)])]} onChange=${(step) => set({ step })} />`}
      <span class="range">Reward <${Field} label="from" type="number" step="any" value=${from} onChange=${(from) => set({ from })} /> <${Field} label="to" type="number" step="any" value=${to} onChange=${(to) => set({ to })} /></span>
      <${Choice} label="Order" value=${order} options=${Object.entries(ORDERS)} onChange=${(order) => set({ order })} />
      ${!hasTraces && html`<label><input type="checkbox" checked=${!!traced} onChange=${(event) => set({ traced: event.target.checked ? "1" : "" })} /> with a trace here</label>`}
      <${Field} label="Search samples, causes, ids" type="search" value=${text} onChange=${(text) => set({ text })} />
    </div>
    ${error && html`<${Problem} error=${error} />`}
    ${!value && !error && html`<${Loading} what="the rollouts" />`}
    ${value && sample && value.rollouts.length > 0 && html`<p class="note">Only this sample: <q>${sampleText(value.inputs[value.rollouts[0].sample])}</q> <a href=${link("rollouts", { ...parameters, sample: "" })}>All samples</a></p>`}
    ${value && html`<p class="muted" role="status">${count(value.total)} of ${count(value.all)} rollouts${leftOut.rollouts > 0 && `; this file has ${count(data.rollouts?.length)} of them one by one, and all in its sums`}${!hasTraces && `; this file holds the traces of ${count(Object.keys(data.traces ?? {}).length)}`}${isFiltered && html` · <a href=${link("rollouts", { order: order === "worst" ? "" : order })}>Clear filters</a>`}</p>
    ${value.rollouts.length === 0 ? html`<p class="empty card">${value.all === 0 ? data.is_live ? "There are no rollouts yet. They appear here as the algorithm makes them." : "The run made no rollouts." : "No rollout matches."}</p>` : html`<div class="card scroll"><table class="rollouts"><thead><tr><th scope="col">Sample</th><th scope="col">Reward</th><th scope="col">Samples</th><th scope="col">Version</th><th scope="col">Status</th><th scope="col" class="number">Time</th><th scope="col" class="number">Calls</th></tr></thead><tbody>
    ${value.rollouts.map((each) => html`<tr class=${each.status} key=${each.id}>
      <td class="sample"><a href=${link("rollout", { id: each.id })}>${sampleText(value.inputs[each.sample])}</a>${each.failure && html`<div class="cause">${each.failure}</div>`}</td>
      <td class="reward">${each.reward === null ? "–" : html`${number(each.reward)} <${RewardBar} value=${each.reward} range=${range} />`}</td>
      <td>${modeName(each.mode)}</td><td>${each.resources === null ? "–" : html`<a href=${link("prompts", { version: version(each.resources) })}>${version(each.resources)}</a>`}</td>
      <td><span class="status ${each.status}">${each.status}</span>${each.attempts > 1 && html` <span class="muted">attempt ${each.attempts}</span>`}</td>
      <td class="number">${duration(each.seconds)}</td><td class="number">${each.calls ? count(each.calls) : "–"}</td></tr>`)}
    </tbody></table></div>`}
    ${value.total > PAGE_SIZE && html`<nav class="pager" aria-label="Pages of rollouts">
      <button disabled=${page === 0} onClick=${() => set({ page: page - 1 || "" })}>Previous</button>
      <span>${count(page * PAGE_SIZE + 1)} to ${count(Math.min(value.total, (page + 1) * PAGE_SIZE))}</span>
      <button disabled=${(page + 1) * PAGE_SIZE >= value.total} onClick=${() => set({ page: page + 1 })}>Next</button></nav>`}`}`;
}

// Prompts

/** @param {PageGiven} given */
function PromptsPage({ data, source, revision, parameters, go }) {
  if (!data.resources.length) return html`<p class="empty">There are no resources: the agent is measured as it is.</p>`;
  const best = data.resources.findIndex((each) => each.is_best);
  const chosen = parameters.version ? place(parameters.version) : best >= 0 ? best : 0;
  const resources = data.resources[chosen];
  const usual = resources?.parent ?? 0;
  const against = parameters.against ? place(parameters.against) : usual;
  if (!resources || !data.resources[against]) return html`<p class="empty">This run has no version ${resources ? parameters.against : parameters.version}.</p>`;
  const mean = (/** @type {Version} */ each) => ["val", "test", "train", null].map((mode) => each.rewards.find((reward) => reward.mode === mode)).find(Boolean);
  const ranked = data.resources.map((each, index) => ({ each, index, found: mean(each) }));
  const range = rangeOf(ranked.flatMap(({ found }) => (found ? [found.mean] : [])));
  const role = (/** @type {number} */ index) => (index === resources.parent ? ", its parent" : index === 0 ? ", the first" : data.resources[index].is_best ? ", the best" : "");
  const others = data.resources.map((_, i) => [version(i), `${version(i)}${role(i)}`]).filter((_, i) => i !== usual && i !== chosen);
  const at = (/** @type {number} */ index) => link("prompts", { ...parameters, version: version(index) });
  return html`<div class="columns"><nav class="card versions" aria-label="Versions"><h2>Versions</h2><ul>
    ${ranked.map(({ each, index, found }) => html`<li><a class=${index === chosen ? "chosen" : ""} aria-current=${index === chosen ? "true" : undefined} href=${at(index)}>
      <span>${version(index)}${each.is_best ? " · best" : index === 0 ? " · first" : ""}</span>${found ? html`<span class="reward">${number(found.mean)} <${RewardBar} value=${found.mean} range=${range} /></span>` : html`<span class="muted">not tried</span>`}</a></li>`)}
    </ul></nav>
    <div>${data.resources.some((each) => each.parent !== null) && html`<section class="card"><h2>Lineage</h2><${Lineage} chosen=${chosen} versions=${ranked.map(({ each, index, found }) => ({ parent: each.parent, is_best: each.is_best, name: version(index), href: at(index), mean: found ? found.mean : null }))} range=${range} /></section>`}
    <section class="card"><div class="head"><h2>${version(chosen)}${resources.is_best ? ", the best" : ""}${resources.parent !== null && html`<span class="made">made from <a href=${at(resources.parent)}>${version(resources.parent)}</a></span>`}</h2>
      ${data.resources.length > 1 && html`<${Choice} label="against" value=${against === usual ? "" : version(against)} options=${[["", chosen === usual ? "nothing" : `${version(usual)}${role(usual)}`], ...others]} onChange=${(against) => go("prompts", { ...parameters, against })} />`}</div>
      ${Object.entries(resources.texts).map(([name, text]) => html`<h3>${name}</h3>${chosen === against ? html`<pre class="diff">${text}</pre>` : html`<${Diff} before=${data.resources[against].texts[name] ?? ""} after=${text} />`}`)}
      ${resources.rewards.length > 0 && html`<h3>Rewards</h3><${Intervals} rows=${resources.rewards.map((each) => ({ name: `${modeName(each.mode)} (${each.n})`, kind: "after", ...each }))} />`}
      <p><a href=${link("rollouts", { version: version(chosen) })}>Its rollouts</a></p></section>
    ${chosen !== against && html`<${Samples} source=${source} revision=${revision} before=${against} after=${chosen} words=${`against ${version(against)}${role(against)}`} />`}</div></div>`;
}

/**
 * Compare two versions sample by sample, on the samples that both were tried on.
 * @param {{source: Source, revision: number, before: number, after: number, words: string}} given
 */
function Samples({ source, revision, before, after, words }) {
  const { value, error } = useAsked(() => source.samples(before, after), [before, after], revision);
  if (error) return html`<${Problem} error=${error} />`;
  if (!value) return html`<section class="card"><h2>Sample by sample ${words}</h2><${Loading} what="the samples" /></section>`;
  const whole = value.better + value.worse + value.same;
  if (!whole) return html`<section class="card"><h2>Sample by sample ${words}</h2><p class="muted">No sample was tried with both.</p></section>`;
  return html`<section class="card"><h2>Sample by sample ${words}</h2>
    <p><${WonAndLost} found=${value} />, ${count(value.same)} the same, of ${count(whole)} ${samplesName(value.mode)} that both were tried on</p>
    ${value.difference && html`<${Difference} found=${value.difference} />`}
    <${ChangedSamples} found=${value} names=${[version(before), version(after)]} /></section>`;
}

/**
 * The samples whose reward changed, each with links to its rollouts of this run.
 * @param {{found: RunComparison, names: string[], run?: string}} given
 */
function ChangedSamples({ found, names, run = "" }) {
  /**
   * @param {RunComparison["samples"][number]} each
   * @param {"before" | "after"} side
   */
  const cell = (each, side) => { const [id] = side === "before" ? each.before_rollouts : each.after_rollouts; const words = reward(each[side]); return html`<td class="number">${found[side].run === run && id ? html`<a href=${link("rollout", { id })}>${words}</a>` : words}</td>`; };
  return html`${found.samples.length > 0 && html`<div class="scroll"><table class="rollouts"><thead><tr><th scope="col">Sample</th>${names.map((each) => html`<th scope="col" class="number">${each}</th>`)}<th scope="col" class="number">Change</th></tr></thead><tbody>
    ${found.samples.map((each) => html`<tr key=${each.after_rollouts[0]}><td class="sample">${sampleText(each.input)}</td>${cell(each, "before")}${cell(each, "after")}
      <td class="number ${change(each.before, each.after) > 0 ? "good" : "bad"}">${signed(change(each.before, each.after))}</td></tr>`)}</tbody></table></div>`}
    ${found.changed > found.samples.length && html`<p class="muted">and ${count(found.changed - found.samples.length)} more</p>`}`;
}

/** @param {{found: {better: number, worse: number}}} given */
function WonAndLost({ found: { better, worse } }) {
  return html`<strong class=${better ? "good" : ""}>${count(better)} better</strong>, <strong class=${worse ? "bad" : ""}>${count(worse)} worse</strong>`;
}

/**
 * A paired difference with its interval.
 * @param {{found: Difference}} given
 */
function Difference({ found }) {
  const isSure = found.low !== null && found.high !== null && (found.low > 0 || found.high < 0);
  return html`<p class="difference ${found.difference > 0 ? "good" : found.difference < 0 ? "bad" : ""}">
    <strong>${signed(found.difference)}</strong><span class="muted">${found.low !== null && found.high !== null && ` 95% ${signed(found.low)} to ${signed(found.high)},`} ${samplesTold(found)}${!isSure && found.low !== null && "; this may be chance"}</span></p>`;
}

// Compare

const SIDES = [["", "best"], ["first", "first"]];

/** @param {PageGiven} given */
function ComparePage({ data, source, revision, parameters, go }) {
  if (!data.is_live) return html`<${Compared} found=${data.compared} run=${data.run.id} />`;
  const { value: runs, error } = useAsked(() => source.runs(), [], 0);
  if (error) return html`<${Problem} error=${error} />`;
  if (!runs) return html`<${Loading} what="the runs" />`;
  if (!runs.length) return html`<p class="empty card">There is no other run beside this one. Two versions of this run are compared under <a href=${link("prompts")}>Prompts</a>.</p>`;
  const { run = runs[0].id, before = "", after = "" } = parameters;
  const set = (/** @type {Record<string, string>} */ change) => go("compare", { run, before, after, ...change });
  return html`<div class="filters">
      <${Choice} label="Before" value=${run} options=${runs.map((each) => [each.id, `${each.id} · ${each.algorithm} · ${moment(each.start)}`])} onChange=${(run) => set({ run })} />
      <${Choice} label="its version" value=${before} options=${SIDES} onChange=${(before) => set({ before })} />
      <${Choice} label="After: this run, version" value=${after} options=${SIDES} onChange=${(after) => set({ after })} />
    </div><${Comparing} key=${run} source=${source} revision=${revision} query=${{ run, before, after }} run=${data.run.id} />`;
}

/** @param {{source: Source, revision: number, query: Record<string, string>, run: string}} given */
function Comparing({ source, revision, query, run }) {
  const { value, error } = useAsked(() => source.compare(query), Object.values(query), revision);
  if (error) return html`<${Problem} error=${error} />`;
  return value ? html`<${Compared} found=${value} run=${run} />` : html`<${Loading} what="the comparison" />`;
}

/** @param {{found: RunComparison, run: string}} given */
function Compared({ found, run }) {
  const { before, after, difference } = found;
  const whole = found.better + found.worse + found.same;
  const rows = [before, after].map((each, i) => each.estimate && { name: i ? "after" : "before", kind: i ? "after" : "before", ...each.estimate }).filter(Boolean);
  if (!whole) return html`<section class="card"><h2>Nothing to compare</h2><p class="muted">No sample has a reward on both sides.</p></section>`;
  return html`<section class="card verdict"><h2>Reward on ${samplesName(found.mode)} that both ran</h2>
      <p class="big">${difference && html`<span class="old">${number(difference.before)}</span><span class="arrow" aria-label="to">→</span><span>${number(difference.after)}</span>`}</p>
      ${difference && html`<${Difference} found=${difference} />`}
      <${Intervals} rows=${rows} />
      ${found.is_chosen_on && html`<p class="note">A search chose by these samples, so there is no interval.</p>`}
      <p class="note">before: <code>${before.label}</code>, after: <code>${after.label}</code></p></section>
    <section class="card"><h2>Sample by sample</h2>
      <p><${WonAndLost} found=${found} />, ${count(found.same)} the same, of ${count(whole)}${found.unpaired > 0 && `; ${count(found.unpaired)} have no reward on one side`}</p>
      <${ChangedSamples} found=${found} names=${["Before", "After"]} run=${run} /></section>`;
}

// Workers

const LOADS = { host: ["Machine", false], cpu_usage_pct: ["CPU", true], mem_pct: ["Memory", true] };

/** @param {PageGiven} given */
function WorkersPage({ source, revision, now }) {
  const { value, error } = useAsked(() => source.workers(), [], revision);
  if (error) return html`<${Problem} error=${error} />`;
  if (!value) return html`<${Loading} what="the workers" />`;
  if (!value.length) return html`<p class="empty card">No worker has asked for work yet.</p>`;
  const parts = ["busy", "idle", "unknown"].map((status) => ({ name: status === "unknown" ? "lost" : status, count: value.filter((each) => each.status === status).length }));
  const loads = Object.entries(LOADS).filter(([name]) => value.some((each) => each.heartbeat_stats?.[name] !== undefined));
  return html`<section class="card"><h2>Workers</h2><p class="big">${count(parts[0].count)}<span class="of"> of ${count(value.length)} busy</span></p>
    <${Parts} parts=${parts} />
    <ul class="legend">${parts.filter((each) => each.count).map((each) => html`<li class=${each.name}>${count(each.count)} ${each.name}</li>`)}</ul></section>
    <div class="card scroll" role="region" aria-label="Workers one by one" tabindex="0"><table class="rollouts"><thead><tr><th scope="col">Worker</th><th scope="col">Status</th><th scope="col">Works on</th><th scope="col" class="number">Since</th><th scope="col" class="number">Heartbeat</th>${loads.map(([, [title, isNumber]]) => html`<th scope="col" class=${isNumber ? "number" : ""}>${title}</th>`)}</tr></thead><tbody>
    ${value.map((each) => html`<tr key=${each.worker_id}><td><code>${each.worker_id}</code></td><td><span class="status ${each.status}">${each.status === "unknown" ? "lost" : each.status}</span></td>
      <td class="sample">${each.rollout ? html`<a href=${link("rollout", { id: each.rollout })}>${sampleText(each.input)}</a>` : html`<span class="muted">–</span>`}</td>
      <td class="number">${ago(each.status === "busy" ? each.last_busy_time : each.last_idle_time, now)}</td>
      <td class="number">${each.last_heartbeat_time === null ? "–" : `${ago(each.last_heartbeat_time, now)} ago`}</td>
      ${loads.map(([name, [, isNumber]]) => html`<td class=${isNumber ? "number" : ""}>${isNumber ? `${number(each.heartbeat_stats?.[name], 0)}%` : each.heartbeat_stats?.[name]}</td>`)}</tr>`)}
    </tbody></table></div>`;
}

// Settings

/** @param {PageGiven} given */
function SettingsPage({ data, settings, change }) {
  const config = JSON.stringify(data.run.config, null, 2);
  const none = data.run.algorithm === null ? "A store does not know the config of its run. The run's folder does: agl ui RUN." : "The run was started from Python, without a config file.";
  return html`<section class="card"><h2>This page</h2><div class="filters settings">
      <${Choice} label="Theme" value=${settings.theme} options=${[["", "as the system"], ["light", "light"], ["dark", "dark"]]} onChange=${(theme) => change({ theme })} />
      <${Choice} label="Times" value=${settings.zone} options=${[["", "of this machine"], ["UTC", "UTC"]]} onChange=${(zone) => change({ zone })} />
    </div><p class="note">Kept in this browser.</p></section>
    <section class="card"><div class="head"><h2>The run's config</h2>${config !== "{}" && html`<button onClick=${(event) => copy(config, event.target)}>Copy</button>`}</div>
      ${config === "{}" ? html`<p class="muted">${none}</p>` : html`<pre class="input tall">${config}</pre>`}</section>`;
}

// Words that several pages say

/** @param {{what: string}} given */
function Loading({ what }) {
  return html`<p class="empty" role="status">Loading ${what}…</p>`;
}

/** @param {{error: Error}} given */
function Problem({ error }) {
  return html`<p class="alert" role="alert">${error.message}</p>`;
}
