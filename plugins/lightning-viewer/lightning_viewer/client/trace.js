"use strict";
/* The page of a rollout: its conversation, its spans. */

const OVER = ["succeeded", "failed", "cancelled"];

function RolloutPage({ data, source, revision, parameters }) {
  const { id } = parameters;
  const [problem, setProblem] = useState(null);
  const [acted, setActed] = useState(0);
  const { value, error } = useAsked(() => source.rollout(id), [id, acted], revision);
  const isOpen = !!value && !OVER.includes(value.status);
  const { value: trace, error: lost } = useAsked(() => source.trace(id), [id, isOpen], isOpen ? revision : 0);
  if (error) return html`<p class="crumbs"><a href=${link("rollouts")}>Rollouts</a> › <code>${id}</code></p><${Problem} error=${error} />`;
  if (!value) return html`<${Loading} what="the rollout" />`;
  const act = (action) => source.act(id, action).then(() => (setProblem(null), setActed(acted + 1)), setProblem);
  return html`<div class="crumbs"><a href=${link("rollouts")}>Rollouts</a> › <code>${value.id}</code>
      <span class="steps">${value.previous && html`<a href=${link("rollout", { id: value.previous })}>‹ previous</a>`} ${value.next && html`<a href=${link("rollout", { id: value.next })}>next ›</a>`}
      ${data.can_act && isOpen && html`<button onClick=${() => act("requeue")}>Queue again</button> <button class="danger" onClick=${() => confirm("Cancel this rollout?") && act("cancel")}>Cancel</button>`}</span></div>
    ${problem && html`<${Problem} error=${problem} />`}
    <section class="card"><dl class="facts">
      <div><dt>reward</dt><dd class="strong">${value.reward === null ? (isOpen ? "not yet" : "none") : number(value.reward)}</dd></div>
      <div><dt>status</dt><dd><span class="status ${value.status}">${value.status}</span></dd></div>
      <div><dt>samples</dt><dd>${modeName(value.mode)}</dd></div>
      <div><dt>version</dt><dd>${value.resources === null ? "–" : html`<a href=${link("prompts", { version: version(value.resources) })}>${version(value.resources)}</a>`}</dd></div>
      <div><dt>started</dt><dd>${moment(value.start)}</dd></div><div><dt>time</dt><dd>${duration(value.seconds)}</dd></div>
      <div><dt>attempts</dt><dd>${value.attempts}</dd></div>
      <div><dt>this sample</dt><dd><a href=${link("rollouts", { sample: value.sample, order: "oldest" })}>run ${count(value.times_run)}×</a></dd></div>
    </dl><h3>Sample</h3><pre class="input">${typeof value.input === "string" ? value.input : JSON.stringify(value.input, null, 2)}</pre>
    ${value.failure && html`<p class="alert">${value.failure}</p>`}
    ${value.attempts > 1 && value.tries && html`<h3>Attempts</h3><ol class="tries">${value.tries.map((each) => html`<li><span class="status ${each.status}">${each.status}</span> ${duration(each.end === null ? null : each.end - each.start)}${each.worker && html` <span class="muted">by</span> <code>${each.worker}</code>`}</li>`)}</ol>`}</section>
    ${lost && html`<${Problem} error=${lost} />`}
    ${trace ? html`<${Trace} trace=${trace} isOpen=${isOpen} />` : trace === null ? html`<p class="empty">This file has the traces of ${count(Object.keys(data.traces).length)} rollouts, and not of this one. See it with <code>agl show ${data.run.id} ${value.id}</code></p>` : !lost && html`<${Loading} what="the trace" />`}`;
}

function Trace({ trace }) {
  const [shown, show] = useState({ repeated: false, tools: true, reasoning: true });
  const toggle = (name, words) => html`<label><input type="checkbox" checked=${shown[name]} onChange=${() => show({ ...shown, [name]: !shown[name] })} /> ${words}</label>`;
  const calls = new Map(trace.calls.map((each) => [each.span, each]));
  const events = trace.spans.filter((each) => calls.has(each.id) || each.kind === "reward" || each.kind === "message" || each.raised.length);
  const told = new Set();
  return html`<section class="card"><div class="head"><h2>Conversation</h2><span class="filters">${toggle("tools", "tools")} ${toggle("reasoning", "reasoning")} <button onClick=${(event) => copy(traceText(trace), event.target)}>Copy as text</button></span></div>
      ${events.length === 0 && html`<p class="empty">Nothing was said: no model call, message or reward was recorded.</p>`}
      <ol class="conversation">${events.map((span) => html`<${Told} span=${span} call=${calls.get(span.id)} shown=${shown} told=${told} />`)}</ol></section>
    <section class="card"><h2>Spans</h2><${Waterfall} spans=${trace.spans} /></section>`;
}

function Told({ span, call, shown, told }) {
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
