"use strict";
/* The page of a rollout: its conversation, its spans. */

const OVER = ["succeeded", "failed", "cancelled"];

/** @param {PageGiven} given */
function RolloutPage({ data, source, revision, parameters }) {
  const { id, offset = "" } = parameters;
  const [problem, setProblem] = useState(/** @type {Error | null} */ (null));
  const [acted, setActed] = useState(0);
  const { value, error } = useAsked(() => source.rollout(id), [id, acted], revision);
  const isOpen = !!value && !OVER.includes(value.status);
  const { value: trace, error: lost } = useAsked(() => source.trace(id, offset), [id, offset, isOpen], isOpen ? revision : 0);
  if (error) return html`<p class="crumbs"><a href=${link("rollouts")}>Rollouts</a> › <code>${id}</code></p><${Problem} error=${error} />`;
  if (!value) return html`<${Loading} what="the rollout" />`;
  const act = (/** @type {string} */ action) => source.act(id, action).then(() => (setProblem(null), setActed(acted + 1)), setProblem);
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
    ${value.attempts > 1 && value.tries && html`<h3>Attempts</h3><ol class="tries">${value.tries.map((each) => html`<li><span class="status ${each.status}">${each.status}</span> ${duration(each.end_time === null ? null : each.end_time - each.start_time)}${each.worker_id && html` <span class="muted">by</span> <code>${each.worker_id}</code>`}</li>`)}</ol>`}</section>
    ${lost && html`<${Problem} error=${lost} />`}
    ${trace ? html`<${Trace} trace=${trace} isOpen=${isOpen} id=${id} offset=${offset} chosen=${parameters.span} />
      ${trace.total > trace.spans.length && html`<nav class="pager" aria-label="Pages of spans"><span>${count(Number(offset) + 1)} to ${count(Number(offset) + trace.spans.length)} of ${count(trace.total)} spans${!data.is_live && html`; the others with <code>agl show ${data.run.id} ${value.id}</code>`}</span>
        ${data.is_live && Number(offset) > 0 && html`<a href=${link("rollout", { id })}>First</a>`} ${data.is_live && trace.next !== null && html`<a href=${link("rollout", { id, offset: trace.next })}>Next</a>`}</nav>`}` : trace === null ? html`<p class="empty">This file has the traces of ${count(Object.keys(data.traces ?? {}).length)} rollouts, and not of this one. See it with <code>agl show ${data.run.id} ${value.id}</code></p>` : !lost && html`<${Loading} what="the trace" />`}`;
}

/** @param {{trace: TraceData, isOpen: boolean, id: string, offset: string, chosen?: string}} given */
function Trace({ trace, isOpen, id, offset, chosen }) {
  const [shown, show] = useState({ messages: true, tools: true, reasoning: true, tokens: false });
  /**
   * @param {keyof Toggles} name
   * @param {string} words
   */
  const toggle = (name, words) => html`<label><input type="checkbox" checked=${shown[name]} onChange=${() => show({ ...shown, [name]: !shown[name] })} /> ${words}</label>`;
  const calls = new Map(trace.calls.map((each) => [each.span, each]));
  const events = trace.spans.filter((each) => calls.has(each.id) || each.kind === "reward" || each.kind === "message" || each.raised.length);
  const has = (/** @type {"tools" | "reasoning"} */ name) => trace.calls.some((call) => [...call.messages, ...call.answers].some((each) => each[name].length));
  /** @type {Set<string>} */
  const told = new Set();
  return html`<section class="card"><div class="head"><h2>Conversation</h2><span class="filters">${toggle("messages", "messages")} ${has("tools") && toggle("tools", "tools")} ${has("reasoning") && toggle("reasoning", "reasoning")} ${trace.calls.some((each) => each.tokens) && toggle("tokens", "tokens")} <button onClick=${(event) => copy(traceText(trace.spans, trace.calls), event.target)}>Copy as text</button></span></div>
      ${shown.tokens && html`<${Rows} rows=${trace.rows} />`}
      ${events.length === 0 && html`<p class="empty">${isOpen ? "Nothing was said yet." : "Nothing was said: no model call, message or reward was recorded."}</p>`}
      <ol class="conversation">${events.map((span) => html`<${Told} key=${span.id} span=${span} call=${calls.get(span.id)} shown=${shown} told=${told} id=${id} offset=${offset} />`)}</ol></section>
    <section class="card"><h2>Spans</h2><${Waterfall} trace=${trace} id=${id} offset=${offset} chosen=${chosen} /></section>`;
}

/** @param {{span: SpanData, call?: Call, shown: Toggles, told: Set<string>, id: string, offset: string}} given */
function Told({ span, call, shown, told, id, offset }) {
  const at = link("rollout", { id, offset, span: span.id });
  if (call) return html`<li class="call"><p class="about"><a href=${at} title="Its span">${call.model || "model call"}</a>${call.purpose && ` · ${call.purpose}`} · ${duration(call.end - call.start)}${call.input_tokens !== null && ` · ${count(call.input_tokens)} + ${count(call.output_tokens)} tokens`}${call.finish && !["stop", "tool_calls", "tool_call"].includes(call.finish) && html` · <strong>${call.finish}</strong>`}</p>
    ${shown.messages && call.repeated > 0 && html`<p class="muted">after ${call.repeated === 1 ? "the message" : `the ${count(call.repeated)} messages`} above</p>`}
    ${shown.messages && call.messages.map((each) => html`<${Message} message=${each} shown=${shown} />`)}
    ${call.answers.map((each) => html`<${Message} message=${each} shown=${shown} answer />`)}
    ${shown.tokens && call.tokens && html`<${Tokens} tokens=${call.tokens} />`}
    ${call.error && html`<p class="alert">${call.error}</p>`}</li>`;
  if (span.kind === "reward") return html`<li class="reward ${span.late ? "late" : ""}">${span.rewards.map((each) => html`<a class="reward-value" href=${at}>reward${each.name === "primary" ? "" : ` ${each.name}`} <strong>${number(each.value)}</strong></a>`)}${span.late && " came after the end, and does not count"}</li>`;
  if (span.kind === "message") return shown.messages && html`<li class="note">${span.text}</li>`;
  return html`<li>${span.raised.map((each) => { const words = `${each.type}: ${each.message}`; if (told.has(words)) return null; told.add(words); return html`<details class="alert"><summary>${words}</summary><pre>${each.trace}</pre></details>`; })}</li>`;
}

/** @param {{message: Said, shown: Toggles, answer?: boolean}} given */
function Message({ message, shown, answer }) {
  if (message.role === "tool" && !shown.tools) return null;
  return html`<div class="message ${message.role} ${answer ? "answer" : ""}"><span class="role">${message.role || "message"}</span><div class="said">
    ${shown.reasoning && message.reasoning && html`<details class="reasoning" open><summary>reasoning</summary>${message.reasoning}</details>`}
    ${message.text && html`<div class="text">${message.text}</div>`}
    ${shown.tools && message.tools.map((each) => html`<div class="tool"><code>${each.name}(${each.arguments})</code></div>`)}
  </div></div>`;
}

/**
 * The engine's own tokens, as they stand in the training row. The less likely the model found one, the darker it is.
 * @param {{tokens: TokenData}} given
 */
function Tokens({ tokens }) {
  const { ids, logprobs, row, before } = tokens;
  /**
   * @param {number} each
   * @param {number} i
   */
  const title = (each, i) => `token ${each}, ${row === null ? "in no training row" : "trained on"}${logprobs ? `: log-probability ${logprobs[i]}, probability ${number(Math.exp(logprobs[i]))}` : ""}`;
  const masked = tokens.goes_on ? tokens.masked ? `${count(tokens.masked)} tokens since the answer before are masked` : "nothing came in between" : `the ${count(tokens.masked)} tokens of its prompt are masked`;
  return html`<div class="tokens"><p class="about">${row === null ? html`<strong>Not trained on</strong>: ${tokens.why}` : html`<strong>Training row ${row}</strong>${tokens.goes_on && " goes on"}: ${masked}, the ${count(tokens.response)} tokens of the answer are <span class="trained">trained on</span>`}${logprobs ? "" : "; the engine gave no log-probabilities"}${tokens.response > ids.length ? `; the first ${count(ids.length)} are shown` : ""}</p>
    <div class="ids" role="group" aria-label="Tokens, masked and trained on" tabindex="0">${tokens.masked > before.length && html`<span class="masked">… ${count(tokens.masked - before.length)} more</span>`}${before.map((each) => html`<span class="masked" title="token ${each}, masked">${each}</span>`)}${ids.map((each, i) => html`<span class=${row === null ? "masked" : "trained"} title=${title(each, i)} style=${{ "--weight": logprobs ? `${Math.round((1 - Math.exp(logprobs[i])) * 100)}%` : "0%" }}>${each}</span>`)}</div></div>`;
}

/**
 * What the training rows of an attempt have together.
 * @param {{rows: TraceData["rows"]}} given
 */
function Rows({ rows }) {
  const sum = (/** @type {"trained" | "masked"} */ name) => rows.reduce((whole, each) => whole + each[name], 0);
  return html`<p class="note">${rows.length === 0 ? "No training row is made of this." : html`${rows.length === 1 ? "One training row" : `${count(rows.length)} training rows`} as the adapter <code>trajectory</code> makes them: ${count(sum("trained"))} tokens are trained on, ${count(sum("masked"))} are masked.`}</p>`;
}

const ROW_HEIGHT = 30; // of a span that is closed, in pixels
const MARGIN = 20; // rows above and below what is seen

/**
 * Which of many rows of one height are to be seen, as the window is scrolled.
 * @param {number} count
 * @returns {[{current: HTMLElement | null}, number, number]}
 */
function useWindow(count) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const [range, setRange] = useState([0, 60]);
  useEffect(() => {
    const look = () => {
      if (!element.current) return;
      const above = -element.current.getBoundingClientRect().top;
      const first = Math.max(0, Math.floor(above / ROW_HEIGHT) - MARGIN);
      setRange((old) => (Math.abs(old[0] - first) < MARGIN / 2 ? old : [first, first + Math.ceil(innerHeight / ROW_HEIGHT) + 2 * MARGIN]));
    };
    look();
    addEventListener("scroll", look, { passive: true });
    return () => removeEventListener("scroll", look);
  }, [count]);
  return [element, range[0], Math.min(count, range[1])];
}

/** @param {{trace: TraceData, id: string, offset: string, chosen?: string}} given */
function Waterfall({ trace, id, offset, chosen }) {
  const spans = useMemo(() => asTree(trace.spans), [trace.spans]);
  const [open, setOpen] = useState(/** @type {string | null} */ (chosen || null));
  const isLong = spans.length > 300;
  const [element, from, to] = useWindow(spans.length);
  useEffect(() => {
    setOpen(chosen || null);
    const place = spans.findIndex((each) => each.id === chosen);
    if (place >= 0 && element.current) scrollTo(0, scrollY + element.current.getBoundingClientRect().top + place * ROW_HEIGHT - innerHeight / 3);
  }, [chosen]);
  const depths = useMemo(() => {
    const found = new Map(), known = new Map(spans.map((each) => [each.id, each]));
    const depth = (/** @type {SpanData} */ span) => {
      const path = [];
      for (let each = /** @type {SpanData | undefined} */ (span); each && !found.has(each.id) && path.length < 50; each = known.get(each.parent ?? "")) path.push(each);
      for (const each of path.reverse()) found.set(each.id, known.has(each.parent ?? "") ? (found.get(each.parent ?? "") ?? 0) + 1 : 0);
      return found.get(span.id);
    };
    spans.forEach(depth);
    return found;
  }, [spans]);
  if (!spans.length) return html`<p class="empty">No span was recorded.</p>`;
  let first = Infinity, last = -Infinity;
  for (const each of spans) if (each.start !== null) (first = Math.min(first, each.start)), (last = Math.max(last, each.end ?? each.start));
  const whole = last - first || 1e-9;
  const rows = isLong ? spans.slice(from, to) : spans;
  return html`<div class="waterfall" role="list" ref=${element} style=${isLong ? { paddingTop: `${from * ROW_HEIGHT}px`, paddingBottom: `${(spans.length - to) * ROW_HEIGHT}px` } : {}}>
    ${rows.map((span) => html`<div role="listitem" key=${span.id} id="span-${span.id}" class=${span.id === chosen ? "chosen" : ""}>
    <button class="span ${span.kind} ${span.failed ? "failed" : ""}" aria-expanded=${open === span.id} onClick=${() => setOpen(open === span.id ? null : span.id)}>
      <span class="name" title=${span.name} style=${{ paddingLeft: `calc(${Math.min(12, depths.get(span.id))} * var(--indent))` }}>${span.name.replace(/^agentlightning\./, "")}</span>
      <span class="lane">${span.start !== null && html`<span class="bar" style=${{ left: `${((span.start - first) / whole) * 100}%`, width: `${Math.max(0.2, ((took(span) ?? 0) / whole) * 100)}%` }}></span>`}</span>
      <span class="time">${duration(took(span))}</span></button>
    ${open === span.id && html`<div class="about-span"><p class="actions"><a href=${link("rollout", { id, offset, span: span.id })}>Link to this span</a> <button onClick=${(event) => copy(traceText(below(spans, span), trace.calls), event.target)}>Copy it and what is below</button></p>
      <dl class="attributes"><div><dt>span</dt><dd><code>${span.id}</code></dd></div>${Object.entries(span.attributes).map(([name, value]) => html`<div><dt>${name}</dt><dd><code>${value}</code></dd></div>`)}</dl></div>`}
  </div>`)}</div>`;
}

/**
 * Return spans with each below its parent, by when they started.
 * @param {SpanData[]} spans
 */
function asTree(spans) {
  const known = new Set(spans.map((each) => each.id));
  /** @type {Map<string, SpanData[]>} */
  const below = new Map();
  for (const each of spans) {
    const parent = each.parent !== null && known.has(each.parent) ? each.parent : "";
    const others = below.get(parent);
    if (others) others.push(each);
    else below.set(parent, [each]);
  }
  const started = (/** @type {SpanData} */ each) => each.start ?? Infinity;
  const lastFirst = (/** @type {string} */ parent) => (below.get(parent) ?? []).reverse().sort((a, b) => started(b) - started(a) || 0);
  const found = [], left = lastFirst("");
  for (let each = left.pop(); each; each = left.pop()) {
    found.push(each);
    left.push(...lastFirst(each.id));
  }
  return found.length === spans.length ? found : spans; // some are each other's parents
}

/** @param {SpanData} span */
const took = (span) => (span.start === null ? null : (span.end ?? span.start) - span.start);

/**
 * Return a span and all that is below it, in their order.
 * @param {SpanData[]} spans
 * @param {SpanData} top
 */
function below(spans, top) {
  const found = new Set([top.id]);
  for (let before = 0; before !== found.size; ) {
    before = found.size;
    for (const each of spans) if (found.has(each.parent ?? "")) found.add(each.id);
  }
  return spans.filter((each) => found.has(each.id));
}

/**
 * Write spans as text that a person, or a model, can read.
 * @param {SpanData[]} spans
 * @param {Call[]} all
 */
function traceText(spans, all) {
  const calls = new Map(all.map((each) => [each.span, each]));
  const said = (/** @type {Said} */ each) => `${each.role}: ${[each.reasoning && `(${each.reasoning})`, each.text, ...each.tools.map((tool) => `${tool.name}(${tool.arguments})`)].filter(Boolean).join("\n")}`;
  return spans.flatMap((span) => {
    const call = calls.get(span.id);
    if (call) return [`## ${call.model || "model call"}`, ...call.messages.map(said), ...call.answers.map((each) => `→ ${said(each)}`), ...(call.error ? [`error: ${call.error}`] : [])];
    if (span.kind === "reward") return [`## reward ${span.rewards.map((each) => `${each.name} ${each.value}`).join(", ")}${span.late ? " (late, does not count)" : ""}`];
    if (span.kind === "message") return [`## note`, span.text];
    return [`## ${span.name}${span.failed ? " (failed)" : ""}`, ...span.raised.map((each) => `${each.type}: ${each.message}`)];
  }).join("\n\n");
}
