"use strict";
/* The pages of the report. */

const link = (page, parameters = {}) => {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined)).toString();
  return `#/${page}${query ? `?${query}` : ""}`;
};
const version = (index) => (index === null || index === undefined ? "–" : `v${index + 1}`);

// The run

function curvePoints(data) {
  const reports = data.curve.filter((each) => each.step !== null);
  const names = ["val_reward", "train_reward", "reward"];
  const name = names.find((each) => reports.filter((report) => typeof report.metrics[each] === "number").length > 1);
  if (!name) return null;
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

function Verdict({ data }) {
  const found = data.comparison;
  if (!found) return html`<section class="card verdict"><h2>Reward</h2><p class="muted">No rollout of this run gave a reward.</p></section>`;
  const { difference } = found;
  const where = `${modeName(found.mode)} samples`.replace("held out", "held-out");
  const before = difference ? { mean: difference.before } : found.before;
  const after = difference ? { mean: difference.after } : found.after;
  const rows = [found.before && { name: "before", kind: "before", ...found.before }, found.after && { name: "best", kind: "after", ...found.after }].filter(Boolean);
  const sure = difference && difference.low !== null && (difference.low > 0 || difference.high < 0);
  return html`<section class="card verdict">
    <h2>Reward on ${where}</h2>
    <p class="big">${before && html`<span class=${after ? "old" : ""}>${number(before.mean)}</span>`}${before && after && html`<span class="arrow" aria-label="to">→</span>`}${after && html`<span>${number(after.mean)}</span>`}</p>
    ${difference && html`<p class="difference ${difference.difference > 0 ? "good" : difference.difference < 0 ? "bad" : ""}">
      <strong>${signed(difference.difference)}</strong>${difference.low !== null && html` <span class="muted">95% ${signed(difference.low)} to ${signed(difference.high)}, ${count(difference.n)} samples${sure ? "" : "; this may be chance"}</span>`}</p>`}
    ${rows.length > 0 && html`<${Intervals} rows=${rows} />`}
    ${found.mode === "val" && found.after && html`<p class="note">The best was chosen on these samples, which flatters it. Give a test_dataset to measure it on others.</p>`}
  </section>`;
}

function Tiles({ data }) {
  const { counts, usage, budget, run } = data;
  const ended = run.end === null ? null : run.end - run.start;
  const used = usage ? ["agent", "algorithm"].map((each) => usage[each]) : [];
  const sum = (field) => (used.some((each) => typeof each[field] === "number") ? used.reduce((total, each) => total + (each[field] || 0), 0) : null);
  const tiles = [
    ["duration", duration(ended)],
    ["model calls", usage ? count(sum("calls")) : "–"],
    ["tokens", sum("input_tokens") === null ? null : `${count(sum("input_tokens"))} in, ${count(sum("output_tokens"))} out`],
    ["cost", sum("cost") === null ? null : `$${number(sum("cost"), 4)}`],
  ].filter(([, value]) => value !== null);
  const total = counts.succeeded + counts.failed + counts.cancelled + counts.unfinished;
  return html`<section class="card">
    <h2>Rollouts</h2>
    <p class="big">${count(total)}</p>
    <${Parts} parts=${["succeeded", "failed", "cancelled", "unfinished"].map((name) => ({ name, count: counts[name] }))} />
    <ul class="legend">${["succeeded", "failed", "cancelled", "unfinished"].filter((name) => counts[name]).map((name) => html`<li class=${name}><a href=${link("rollouts", name === "unfinished" ? {} : { status: name })}>${count(counts[name])} ${name}</a></li>`)}
      ${counts.retried > 0 && html`<li>${count(counts.retried)} took several attempts</li>`}</ul>
    <dl class="facts">${tiles.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
    ${budget && Object.entries(budget.limits).map(([name, limit]) => html`<div><dt>budget, ${name}</dt><dd>${number(budget.used[name] || 0, name === "usd" ? 4 : 0)} of ${number(limit, name === "usd" ? 2 : 0)}${budget.ended_by === name ? ", used up" : ""}</dd></div>`)}</dl>
  </section>`;
}

function Failures({ data }) {
  if (!data.failures.length) return null;
  return html`<section class="card wide"><h2>Why rollouts failed</h2><table class="plain"><tbody>
    ${data.failures.map((each) => html`<tr><td class="number">${count(each.count)}×</td><td><code>${each.cause}</code>${each.where && html`<div class="muted">${each.where}</div>`}</td><td class="end"><a href=${link("rollout", { id: each.example })}>an example</a></td></tr>`)}
  </tbody></table></section>`;
}

function Best({ data }) {
  const index = data.resources.findIndex((each) => each.is_best);
  if (index < 0) return null;
  const first = data.resources[0];
  return html`<section class="card wide"><h2>${index === 0 ? "The best is what it started from" : "The best found, against the first"}</h2>
    ${Object.entries(data.resources[index].texts).map(([name, text]) => html`<h3>${name}</h3><${Diff} before=${first.texts[name] ?? ""} after=${text} />`)}
    <p class="end"><a href=${link("prompts")}>All ${count(data.resources.length)} versions</a></p></section>`;
}

function Diff({ before, after }) {
  return html`<pre class="diff">${lineDiff(before, after).map(({ sign, text }) => html`<div class=${sign === "+" ? "added" : sign === "-" ? "removed" : ""}><span class="sign">${sign}</span>${text || " "}</div>`)}</pre>`;
}

function RunPage({ data }) {
  const curve = useMemo(() => curvePoints(data), [data]);
  return html`${data.run.error && html`<p class="alert">${data.run.error}</p>`}
    <div class="cards">
      <${Verdict} data=${data} /><${Tiles} data=${data} />
      ${curve && html`<section class="card wide"><h2>${{ val_reward: "Validation reward", train_reward: "Training reward" }[curve.name] || "Reward"} by step</h2><${Curve} points=${curve.points} label="reward by step" /></section>`}
      <${Failures} data=${data} /><${Best} data=${data} />
      <section class="card wide"><h2>Made of</h2><dl class="facts">
        <div><dt>algorithm</dt><dd>${data.run.algorithm}</dd></div>
        ${data.run.config_file && html`<div><dt>config</dt><dd>${data.run.config_file}</dd></div>`}
        <div><dt>Python</dt><dd>${data.run.python}</dd></div>
        ${data.run.resumed > 0 && html`<div><dt>resumed</dt><dd>${count(data.run.resumed)}×</dd></div>`}
        ${Object.entries(data.run.versions).map(([name, each]) => html`<div><dt>${name}</dt><dd>${each}</dd></div>`)}
      </dl>
      ${Object.keys(data.run.config).length > 0 && html`<details><summary>The whole config</summary><pre>${JSON.stringify(data.run.config, null, 2)}</pre></details>`}</section>
    </div>`;
}

// Rollouts

const PAGE_SIZE = 100;
const ORDERS = {
  worst: ["worst first", (a, b) => (a.reward ?? -Infinity) - (b.reward ?? -Infinity)],
  best: ["best first", (a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity)],
  newest: ["newest first", (a, b) => b.start - a.start],
  oldest: ["oldest first", (a, b) => a.start - b.start],
  slowest: ["slowest first", (a, b) => (b.seconds ?? 0) - (a.seconds ?? 0)],
};

function Choice({ label, value, options, onChange }) {
  return html`<label>${label} <select value=${value} onChange=${(event) => onChange(event.target.value)}>
    ${options.map(([key, name]) => html`<option value=${key} selected=${key === value}>${name}</option>`)}</select></label>`;
}

function RolloutsPage({ data, parameters, go }) {
  const { mode = "", status = "", version: chosen = "", text = "", order = "worst", traced = "" } = parameters;
  const set = (change) => go("rollouts", { ...parameters, page: "", ...change });
  const rows = useMemo(() => {
    const needle = text.toLowerCase();
    return data.rollouts.filter((each) =>
      (!mode || (each.mode || "other") === mode) && (!status || each.status === status) &&
      (!chosen || version(each.resources) === chosen) && (!traced || data.traces[each.id]) &&
      (!parameters.sample || String(each.sample) === parameters.sample) &&
      (!needle || `${each.id} ${each.failure || ""} ${JSON.stringify(data.inputs[each.sample])}`.toLowerCase().includes(needle))
    ).sort(ORDERS[order][1]);
  }, [data, mode, status, chosen, text, order, traced, parameters.sample]);
  const range = useMemo(() => rangeOf(data.rollouts.map((each) => each.reward)), [data]);
  const page = Math.min(Number(parameters.page) || 0, Math.max(0, Math.ceil(rows.length / PAGE_SIZE) - 1));
  const modes = [...new Set(data.rollouts.map((each) => each.mode || "other"))];
  const statuses = [...new Set(data.rollouts.map((each) => each.status))];
  return html`<div class="filters">
      <${Choice} label="Samples" value=${mode} options=${[["", "all"], ...modes.map((each) => [each, modeName(each)])]} onChange=${(mode) => set({ mode })} />
      <${Choice} label="Status" value=${status} options=${[["", "all"], ...statuses.map((each) => [each, each])]} onChange=${(status) => set({ status })} />
      <${Choice} label="Version" value=${chosen} options=${[["", "all"], ...data.resources.map((each, i) => [version(i), `${version(i)}${each.is_best ? ", the best" : ""}`])]} onChange=${(version) => set({ version })} />
      <${Choice} label="Order" value=${order} options=${Object.entries(ORDERS).map(([key, [name]]) => [key, name])} onChange=${(order) => set({ order })} />
      <label><input type="checkbox" checked=${!!traced} onChange=${(event) => set({ traced: event.target.checked ? "1" : "" })} /> with a trace here</label>
      <input type="search" aria-label="Search" placeholder="Search samples, causes, ids" value=${text} onInput=${(event) => set({ text: event.target.value })} />
    </div>
    ${parameters.sample && html`<p class="note">Only this sample: <q>${sampleText(data.inputs[Number(parameters.sample)])}</q> <a href=${link("rollouts", { ...parameters, sample: "" })}>All samples</a></p>`}
    <p class="muted">${count(rows.length)} of ${count(data.rollouts.length)} rollouts${data.left_out.traces > 0 && `; this file holds the traces of ${count(Object.keys(data.traces).length)}`}</p>
    <div class="card scroll"><table class="rollouts"><thead><tr><th>Sample</th><th>Reward</th><th>Samples</th><th>Version</th><th>Status</th><th class="number">Time</th><th class="number">Calls</th></tr></thead><tbody>
    ${rows.slice(page * PAGE_SIZE, (page + 1) * PAGE_SIZE).map((each) => html`<tr class=${each.status} key=${each.id}>
      <td class="sample"><a href=${link("rollout", { id: each.id })}>${sampleText(data.inputs[each.sample])}</a>${each.failure && html`<div class="cause">${each.failure}</div>`}</td>
      <td class="reward">${each.reward === null ? "–" : html`${number(each.reward)} <${RewardBar} value=${each.reward} range=${range} />`}</td>
      <td>${modeName(each.mode)}</td><td>${each.resources === null ? "–" : html`<a href=${link("prompts", { version: version(each.resources) })}>${version(each.resources)}</a>`}</td>
      <td><span class="status ${each.status}">${each.status}</span>${each.attempts > 1 && html` <span class="muted">attempt ${each.attempts}</span>`}</td>
      <td class="number">${duration(each.seconds)}</td><td class="number">${each.calls ? count(each.calls) : "–"}</td></tr>`)}
    </tbody></table></div>
    ${rows.length === 0 && html`<p class="empty">No rollout matches.</p>`}
    ${rows.length > PAGE_SIZE && html`<nav class="pager" aria-label="Pages">
      <button disabled=${page === 0} onClick=${() => set({ page: page - 1 })}>Previous</button>
      <span>${count(page * PAGE_SIZE + 1)} to ${count(Math.min(rows.length, (page + 1) * PAGE_SIZE))}</span>
      <button disabled=${(page + 1) * PAGE_SIZE >= rows.length} onClick=${() => set({ page: page + 1 })}>Next</button></nav>`}`;
}

// One rollout and its trace

function RolloutPage({ data, parameters, go }) {
  const rollout = data.rollouts.find((each) => each.id === parameters.id);
  if (!rollout) return html`<p class="empty">This report has no rollout <code>${parameters.id}</code>.</p>`;
  const trace = data.traces[rollout.id];
  const same = data.rollouts.filter((each) => each.sample === rollout.sample);
  const ids = Object.keys(data.traces), place = ids.indexOf(rollout.id);
  return html`<p class="crumbs"><a href=${link("rollouts")}>Rollouts</a> › <code>${rollout.id}</code>
      ${place >= 0 && html`<span class="steps">${place > 0 && html`<a href=${link("rollout", { id: ids[place - 1] })}>‹ previous</a>`} ${place < ids.length - 1 && html`<a href=${link("rollout", { id: ids[place + 1] })}>next ›</a>`}</span>`}</p>
    <section class="card"><dl class="facts">
      <div><dt>reward</dt><dd class="strong">${rollout.reward === null ? "none" : number(rollout.reward)}</dd></div>
      <div><dt>status</dt><dd><span class="status ${rollout.status}">${rollout.status}</span></dd></div>
      <div><dt>samples</dt><dd>${modeName(rollout.mode)}</dd></div>
      <div><dt>version</dt><dd>${rollout.resources === null ? "–" : html`<a href=${link("prompts", { version: version(rollout.resources) })}>${version(rollout.resources)}</a>`}</dd></div>
      <div><dt>started</dt><dd>${moment(rollout.start)}</dd></div><div><dt>time</dt><dd>${duration(rollout.seconds)}</dd></div>
      <div><dt>attempts</dt><dd>${rollout.attempts}</dd></div>
      <div><dt>this sample</dt><dd><a href=${link("rollouts", { sample: rollout.sample, order: "oldest" })}>run ${count(same.length)}×</a></dd></div>
    </dl><h3>Sample</h3><pre class="input">${typeof data.inputs[rollout.sample] === "string" ? data.inputs[rollout.sample] : JSON.stringify(data.inputs[rollout.sample], null, 2)}</pre>
    ${rollout.failure && html`<p class="alert">${rollout.failure}</p>`}</section>
    ${trace ? html`<${Trace} trace=${trace} />` : html`<p class="empty">This file has the traces of ${count(ids.length)} rollouts, and not of this one. See it with <code>agl show ${data.run.id} ${rollout.id}</code></p>`}`;
}

function Trace({ trace }) {
  const [shown, show] = useState({ repeated: false, tools: true, reasoning: true });
  const toggle = (name, words) => html`<label><input type="checkbox" checked=${shown[name]} onChange=${() => show({ ...shown, [name]: !shown[name] })} /> ${words}</label>`;
  const calls = new Map(trace.calls.map((each) => [each.span, each]));
  const events = trace.spans.filter((each) => calls.has(each.id) || each.kind === "reward" || each.kind === "message" || each.raised.length);
  const told = new Set();
  return html`<section class="card"><div class="head"><h2>Conversation</h2><span class="filters">${toggle("tools", "tools")} ${toggle("reasoning", "reasoning")} <button onClick=${(event) => copy(traceText(trace), event.target)}>Copy as text</button></span></div>
      ${events.length === 0 && html`<p class="empty">Nothing was said: no model call, message or reward was recorded.</p>`}
      <ol class="conversation">${events.map((span) => html`<${Event} span=${span} call=${calls.get(span.id)} shown=${shown} told=${told} />`)}</ol></section>
    <section class="card"><h2>Spans</h2><${Waterfall} spans=${trace.spans} /></section>`;
}

function Event({ span, call, shown, told }) {
  if (call) return html`<li class="call" id="conversation-${span.id}"><p class="about">${call.model || "model call"}${call.purpose && ` · ${call.purpose}`} · ${duration(call.end - call.start)}${call.input_tokens !== null && ` · ${count(call.input_tokens)} + ${count(call.output_tokens)} tokens`}${call.finish && !["stop", "tool_calls", "tool_call"].includes(call.finish) && html` · <strong>${call.finish}</strong>`}</p>
    ${call.repeated > 0 && html`<p class="muted">after the ${count(call.repeated)} messages above</p>`}
    ${call.messages.map((each) => html`<${Message} message=${each} shown=${shown} />`)}
    ${call.answers.map((each) => html`<${Message} message=${each} shown=${shown} answer />`)}
    ${call.error && html`<p class="alert">${call.error}</p>`}</li>`;
  if (span.kind === "reward") return html`<li class="reward ${span.late ? "late" : ""}">${span.rewards.map((each) => html`<span class="reward-value">reward${each.name === "primary" ? "" : ` ${each.name}`} <strong>${number(each.value)}</strong></span>`)}${span.late && " came after the end, and does not count"}</li>`;
  if (span.kind === "message") return html`<li class="note">${span.text}</li>`;
  return html`<li>${span.raised.map((each) => { const words = `${each.type}: ${each.message}`; if (told.has(words)) return null; told.add(words); return html`<details class="alert"><summary>${words}</summary><pre>${each.trace}</pre></details>`; })}</li>`;
}

function Message({ message, shown, answer }) {
  if (message.role === "tool" && !shown.tools) return null;
  return html`<div class="message ${message.role} ${answer ? "answer" : ""}"><span class="role">${message.role || "message"}</span><div class="said">
    ${shown.reasoning && message.reasoning && html`<details class="reasoning" open><summary>reasoning</summary>${message.reasoning}</details>`}
    ${message.text && html`<div class="text">${message.text}</div>`}
    ${shown.tools && message.tools.map((each) => html`<div class="tool"><code>${each.name}(${each.arguments})</code></div>`)}
  </div></div>`;
}

function Waterfall({ spans }) {
  const [open, setOpen] = useState(null);
  if (!spans.length) return html`<p class="empty">No span was recorded.</p>`;
  const known = new Map(spans.map((each) => [each.id, each]));
  const depth = (span) => { let found = 0; for (let above = known.get(span.parent); above && found < 20; above = known.get(above.parent)) found++; return found; };
  const starts = spans.map((each) => each.start).filter((each) => each !== null), ends = spans.map((each) => each.end ?? each.start).filter((each) => each !== null);
  const first = Math.min(...starts), whole = Math.max(...ends) - first || 1e-9;
  return html`<div class="waterfall" role="list">${spans.map((span) => html`<div role="listitem" key=${span.id}>
    <button class="span ${span.kind} ${span.failed ? "failed" : ""}" aria-expanded=${open === span.id} onClick=${() => setOpen(open === span.id ? null : span.id)}>
      <span class="name" style=${{ paddingLeft: `${depth(span) * 1}rem` }}>${span.name}</span>
      <span class="lane"><span class="bar" style=${{ left: `${((span.start - first) / whole) * 100}%`, width: `${Math.max(0.2, (((span.end ?? span.start) - span.start) / whole) * 100)}%` }}></span></span>
      <span class="time">${duration((span.end ?? span.start) - span.start)}</span></button>
    ${open === span.id && html`<dl class="attributes"><div><dt>span</dt><dd><code>${span.id}</code></dd></div>${Object.entries(span.attributes).map(([name, value]) => html`<div><dt>${name}</dt><dd><code>${value}</code></dd></div>`)}</dl>`}
  </div>`)}</div>`;
}

/** Write a trace as text that a person, or a model, can read. */
function traceText(trace) {
  const calls = new Map(trace.calls.map((each) => [each.span, each]));
  const said = (each) => `${each.role}: ${[each.reasoning && `(${each.reasoning})`, each.text, ...each.tools.map((tool) => `${tool.name}(${tool.arguments})`)].filter(Boolean).join("\n")}`;
  return trace.spans.flatMap((span) => {
    const call = calls.get(span.id);
    if (call) return [`## ${call.model || "model call"}`, ...call.messages.map(said), ...call.answers.map((each) => `→ ${said(each)}`), ...(call.error ? [`error: ${call.error}`] : [])];
    if (span.kind === "reward") return [`## reward ${span.rewards.map((each) => `${each.name} ${each.value}`).join(", ")}${span.late ? " (late, does not count)" : ""}`];
    return span.kind === "message" ? [`## note`, span.text] : span.raised.map((each) => `## ${each.type}: ${each.message}`);
  }).join("\n\n");
}

function copy(text, button) {
  const before = button.textContent, said = (words) => { button.textContent = words; setTimeout(() => (button.textContent = before), 1500); };
  if (!navigator.clipboard) return said("This browser does not let a file copy");
  navigator.clipboard.writeText(text).then(() => said("Copied"), () => said("Not allowed"));
}

// Prompts

function PromptsPage({ data, parameters, go }) {
  if (!data.resources.length) return html`<p class="empty">This run had no resources: the agent was measured as it is.</p>`;
  const best = data.resources.findIndex((each) => each.is_best);
  const chosen = parameters.version ? Number(parameters.version.slice(1)) - 1 : best >= 0 ? best : 0;
  const against = parameters.against ? Number(parameters.against.slice(1)) - 1 : 0;
  const resources = data.resources[chosen];
  if (!resources || !data.resources[against]) return html`<p class="empty">This run has no version ${parameters.version}.</p>`;
  const mean = (each) => ["test", "val", "train", null].map((mode) => each.rewards.find((reward) => reward.mode === mode)).find(Boolean);
  const ranked = data.resources.map((each, index) => ({ each, index, found: each.rewards.find((reward) => reward.mode === "val") || mean(each) }));
  const range = rangeOf(ranked.flatMap(({ found }) => (found ? [found.mean] : [])));
  return html`<div class="columns"><nav class="card versions" aria-label="Versions"><h2>Versions</h2><ul>
    ${ranked.map(({ each, index, found }) => html`<li><a class=${index === chosen ? "chosen" : ""} aria-current=${index === chosen ? "true" : undefined} href=${link("prompts", { ...parameters, version: version(index) })}>
      <span>${version(index)}${each.is_best ? " · best" : index === 0 ? " · first" : ""}</span>${found ? html`<span class="reward">${number(found.mean)} <${RewardBar} value=${found.mean} range=${range} /></span>` : html`<span class="muted">not tried</span>`}</a></li>`)}
    </ul></nav>
    <div><section class="card"><div class="head"><h2>${version(chosen)}${resources.is_best ? ", the best" : ""}</h2>
      <${Choice} label="against" value=${version(against)} options=${data.resources.map((each, i) => [version(i), `${version(i)}${i === 0 ? ", the first" : ""}`])} onChange=${(against) => go("prompts", { ...parameters, against })} /></div>
      ${Object.entries(resources.texts).map(([name, text]) => html`<h3>${name}</h3>${chosen === against ? html`<pre class="diff">${text}</pre>` : html`<${Diff} before=${data.resources[against].texts[name] ?? ""} after=${text} />`}`)}
      ${resources.rewards.length > 0 && html`<h3>Rewards</h3><${Intervals} rows=${resources.rewards.map((each) => ({ name: `${modeName(each.mode)} (${each.n})`, kind: "after", ...each }))} />`}
      <p><a href=${link("rollouts", { version: version(chosen) })}>Its rollouts</a></p></section>
    ${chosen !== against && html`<${Samples} data=${data} before=${against} after=${chosen} />`}</div></div>`;
}

/** Compare two versions sample by sample, on the samples that both were tried on. */
function Samples({ data, before, after }) {
  const rows = useMemo(() => {
    const means = (resources) => {
      const found = new Map();
      for (const each of data.rollouts) if (each.resources === resources && each.reward !== null) found.set(each.sample, [...(found.get(each.sample) || []), each]);
      return found;
    };
    const mean = (each) => each.reduce((sum, rollout) => sum + rollout.reward, 0) / each.length;
    const old = means(before), now = means(after);
    return [...old].filter(([sample]) => now.has(sample)).map(([sample, rollouts]) => ({
      sample, from: mean(rollouts), to: mean(now.get(sample)), old: rollouts[0], now: now.get(sample)[0],
    })).sort((a, b) => (a.to - a.from) - (b.to - b.from));
  }, [data, before, after]);
  if (!rows.length) return html`<section class="card"><h2>Sample by sample</h2><p class="muted">No sample was tried with both.</p></section>`;
  const won = rows.filter((each) => each.to > each.from).length, lost = rows.filter((each) => each.to < each.from).length;
  const changed = rows.filter((each) => each.to !== each.from);
  return html`<section class="card"><h2>Sample by sample</h2>
    <p><strong class="good">${count(won)} better</strong>, <strong class="bad">${count(lost)} worse</strong>, ${count(rows.length - won - lost)} the same, of ${count(rows.length)} that both were tried on</p>
    <div class="scroll"><table class="rollouts"><thead><tr><th>Sample</th><th class="number">${version(before)}</th><th class="number">${version(after)}</th><th class="number">Change</th></tr></thead><tbody>
    ${changed.slice(0, PAGE_SIZE).map((each) => html`<tr><td class="sample">${sampleText(data.inputs[each.sample])}</td>
      <td class="number"><a href=${link("rollout", { id: each.old.id })}>${number(each.from)}</a></td><td class="number"><a href=${link("rollout", { id: each.now.id })}>${number(each.to)}</a></td>
      <td class="number ${each.to > each.from ? "good" : "bad"}">${signed(each.to - each.from)}</td></tr>`)}</tbody></table></div>
    ${changed.length > PAGE_SIZE && html`<p class="muted">and ${count(changed.length - PAGE_SIZE)} more</p>`}</section>`;
}
