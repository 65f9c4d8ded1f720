"use strict";
/* Charts, as SVG. */

const { html, render, useState, useMemo, useEffect, useRef } = htmPreact;

/**
 * Return round numbers from `low` to `high`, about `wanted` of them.
 * @param {number} low
 * @param {number} high
 */
function ticks(low, high, wanted = 4) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough) || rough;
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-6);
  const length = Math.min(last - first + 1, 4 * wanted); // above 2^53 they are not told apart
  return Array.from({ length }, (_, i) => (first + i) * step);
}

/**
 * Return what to write at the ticks of an axis: all with the same decimals.
 * @param {number[]} values
 */
function tickWords(values) {
  const largest = values.reduce((most, each) => Math.max(most, Math.abs(each)), 0);
  const step = values.length > 1 ? values[1] - values[0] : largest;
  if (!step || largest >= 1e6 || largest < 1e-3) return values.map((each) => (each === 0 ? "0" : number(each)));
  const digits = Math.max(0, Math.min(8, -Math.floor(Math.log10(step) + 1e-9)));
  return values.map((each) => each.toFixed(digits));
}

/**
 * Tell the range of rewards: 0 to 1 where all are within it, and some not far below 1.
 * @param {(number | null | undefined)[]} values
 * @returns {[number, number]}
 */
function rangeOf(values) {
  const known = values.filter((each) => each !== null && each !== undefined);
  if (!known.length) return [0, 1];
  const low = known.reduce((a, b) => Math.min(a, b)), high = known.reduce((a, b) => Math.max(a, b));
  if (low >= 0 && high <= 1) return [0, high === 0 || high >= 0.1 ? 1 : high * 1.08];
  const margin = (high - low || Math.abs(high)) * 0.08;
  return [low - margin, high + margin];
}

/**
 * A curve with a band for its interval.
 * @param {{points: {x: number, y: number, low?: number | null, high?: number | null, title: string}[], label: string}} given
 */
function Curve({ points, label }) {
  const [low, high] = rangeOf(points.flatMap((each) => [each.y, each.low, each.high]));
  const marks = ticks(low, high), words = tickWords(marks);
  const longest = words.reduce((most, each) => Math.max(most, each.length), 0);
  const width = 1000, height = 250, left = Math.max(42, 14 + 7 * longest), right = 12, top = 12, bottom = 30;
  const first = points[0].x, last = points[points.length - 1].x;
  const x = (/** @type {number} */ value) => left + ((value - first) / (last - first || 1)) * (width - left - right);
  const y = (/** @type {number} */ value) => height - bottom - ((value - low) / (high - low || 1)) * (height - top - bottom);
  const path = points.map((each, i) => `${i ? "L" : "M"}${x(each.x)},${y(each.y)}`).join("");
  const banded = points.filter((each) => each.low !== null && each.low !== undefined);
  const band = banded.length > 1 &&
    `M${banded.map((each) => `${x(each.x)},${y(each.high ?? each.y)}`).join("L")}L${[...banded].reverse().map((each) => `${x(each.x)},${y(each.low ?? each.y)}`).join("L")}Z`;
  const steps = ticks(first, last, Math.min(8, points.length)).filter((each) => Number.isInteger(each));
  return html`<svg class="chart" viewBox="0 0 ${width} ${height}" role="img" aria-label=${label}>
    ${marks.map((value, i) => html`<g class="tick">
      <line x1=${left} x2=${width - right} y1=${y(value)} y2=${y(value)} />
      <text x=${left - 8} y=${y(value)} dy="0.32em" text-anchor="end">${words[i]}</text></g>`)}
    ${steps.map((value) => html`<text class="tick" x=${x(value)} y=${height - 10} text-anchor="middle">${value}</text>`)}
    ${band && html`<path class="band" d=${band} />`}
    <path class="line" d=${path} />
    ${points.map((each) => html`<circle class="dot" cx=${x(each.x)} cy=${y(each.y)} r="3.5"><title>${each.title}</title></circle>`)}
  </svg>`;
}

/**
 * Means with their intervals, one line each, over one axis.
 * @param {{rows: Measured[]}} given
 */
function Intervals({ rows }) {
  const [low, high] = rangeOf(rows.flatMap((each) => [each.mean, each.low, each.high]));
  const end = (/** @type {number} */ value) => (Number.isInteger(value) && Math.abs(value) < 1e6 ? number(value, 0) : number(value));
  const place = (/** @type {number} */ value) => `${((value - low) / (high - low || 1)) * 100}%`;
  return html`<div class="intervals">${rows.map((each) => html`<div class="interval ${each.kind}">
    <span class="name">${each.name}</span>
    <span class="track">
      ${each.low !== null && each.high !== null && html`<span class="reach" style=${{ left: place(each.low), width: `calc(${place(each.high)} - ${place(each.low)})` }}></span>`}
      <span class="mean" style=${{ left: place(each.mean) }}></span>
    </span>
    <span class="value">${number(each.mean)}</span>
  </div>`)}
  <div class="interval axis"><span class="name"></span><span class="track"><span>${end(low)}</span><span>${end(high)}</span></span><span class="value"></span></div>
  </div>`;
}

/**
 * A bar of parts.
 * @param {{parts: {name: string, count: number}[]}} given
 */
function Parts({ parts }) {
  const whole = parts.reduce((sum, each) => sum + each.count, 0) || 1;
  return html`<div class="parts" role="img" aria-label=${parts.map((each) => `${each.count} ${each.name}`).join(", ")}>
    ${parts.filter((each) => each.count).map((each) => html`<span class=${each.name} style=${{ width: `${(each.count / whole) * 100}%` }} title="${count(each.count)} ${each.name}"></span>`)}
  </div>`;
}

/**
 * A reward within its range, as a short bar.
 * @param {{value: number, range: [number, number]}} given
 */
function RewardBar({ value, range }) {
  const share = (value - range[0]) / (range[1] - range[0] || 1);
  return html`<span class="reward-bar"><span style=${{ width: `${Math.max(0, Math.min(1, share)) * 100}%` }}></span></span>`;
}
