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

const NARROW = 760; // pixels: there, and below, one unit of a chart is less than one of them

/**
 * A curve with a band for its interval.
 * @param {{points: {x: number, y: number, low?: number | null, high?: number | null, title: string}[], label: string}} given
 */
function Curve({ points, label }) {
  const [low, high] = rangeOf(points.flatMap((each) => [each.y, each.low, each.high]));
  const marks = ticks(low, high), words = tickWords(marks);
  const longest = words.reduce((most, each) => Math.max(most, each.length), 0);
  const width = innerWidth > NARROW ? 1000 : 420, height = 250, left = Math.max(42, 14 + 7 * longest), right = 12, top = 12, bottom = 30;
  const first = points[0].x, last = points[points.length - 1].x;
  const x = (/** @type {number} */ value) => left + ((value - first) / (last - first || 1)) * (width - left - right);
  const y = (/** @type {number} */ value) => height - bottom - ((value - low) / (high - low || 1)) * (height - top - bottom);
  const path = points.map((each, i) => `${i ? "L" : "M"}${x(each.x)},${y(each.y)}`).join("");
  /** @type {(typeof points)[]} */
  const banded = [[]]; // where a point has no interval, the band is interrupted
  for (const each of points) {
    if (each.low === null || each.low === undefined) banded.push([]);
    else banded[banded.length - 1].push(each);
  }
  const edge = (/** @type {typeof points} */ part, /** @type {"low" | "high"} */ end) =>
    part.map((each) => `${x(each.x)},${y(each[end] ?? each.y)}`).join("L");
  const band = banded.filter((part) => part.length > 1)
    .map((part) => `M${edge(part, "high")}L${edge([...part].reverse(), "low")}Z`).join("");
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

const MOST_DRAWN = 200; // versions; of more, those that nothing came from are left out

/**
 * Say where versions stand in a drawing of their lineage: in which generation, and at which place in it.
 * @param {[number, number | null][]} parents
 */
function lineagePlaces(parents) {
  /** @type {Map<number, number[]>} */
  const children = new Map();
  /** @type {Map<number, {generation: number, place: number}>} */
  const found = new Map();
  /** @type {number[]} */
  const roots = [];
  for (const [each, parent] of parents) {
    if (parent === null) roots.push(each);
    else children.set(parent, [...(children.get(parent) || []), each]);
  }
  let places = 0, generations = 0;
  const open = roots.reverse().map((each) => ({ each, generation: 0 }));
  for (let next = open.pop(); next; next = open.pop()) {
    const { each, generation } = next, own = children.get(each) || [];
    generations = Math.max(generations, generation + 1);
    found.set(each, { generation, place: own.length ? 0 : places++ });
    open.push(...[...own].reverse().map((child) => ({ each: child, generation: generation + 1 })));
  }
  // A version is younger than its parent, so its children have their places before it gets its own between them.
  const at = (/** @type {number} */ each) => found.get(each) || { generation: 0, place: 0 };
  for (const each of [...found.keys()].sort((a, b) => b - a)) {
    const own = children.get(each);
    if (own) at(each).place = (at(own[0]).place + at(own[own.length - 1]).place) / 2;
  }
  return { at, places, generations };
}

/**
 * The versions, each below the one that it was made from; of a long lineage, beside it.
 * @param {{versions: Drawn[], chosen: number, range: [number, number]}} given
 */
function Lineage({ versions, chosen, range }) {
  const isParent = new Set(versions.map((each) => each.parent));
  const isShown = (/** @type {number} */ i) => versions.length <= MOST_DRAWN || isParent.has(i) || versions[i].is_best || i === chosen;
  /** @type {[number, number | null][]} */
  const all = versions.map((each, i) => [i, each.parent]);
  const shown = all.filter(([i]) => isShown(i));
  const { at, places, generations } = useMemo(() => lineagePlaces(shown), [shown.join(" ")]);
  const isLong = generations > places;
  const step = Math.max(13, Math.min(44, 780 / (isLong ? generations : places))), gap = 46, margin = 24, radius = Math.min(6.5, step * 0.4);
  const across = (/** @type {number} */ i) => margin + (isLong ? at(i).generation : at(i).place) * step;
  const down = (/** @type {number} */ i) => 14 + (isLong ? at(i).place : at(i).generation) * gap;
  const width = 2 * margin + ((isLong ? generations : places) - 1) * step, height = 40 + ((isLong ? places : generations) - 1) * gap;
  const line = new Set();
  for (let each = /** @type {number | null} */ (chosen); each !== null; each = versions[each].parent) line.add(each);
  /**
   * @param {number} from
   * @param {number} to
   */
  const curve = (from, to) => {
    const [x, y, u, v] = [across(from), down(from), across(to), down(to)];
    return isLong ? `M${x},${y}C${(x + u) / 2},${y} ${(x + u) / 2},${v} ${u},${v}` : `M${x},${y}C${x},${(y + v) / 2} ${u},${(y + v) / 2} ${u},${v}`;
  };
  const share = (/** @type {number} */ mean) => `${Math.round(Math.max(0, Math.min(1, (mean - range[0]) / (range[1] - range[0] || 1))) * 100)}%`;
  return html`<div class="scroll"><svg class="lineage" role="group" aria-label="lineage of the versions" width=${width} height=${height}>
      ${shown.map(([each, parent]) => parent !== null && html`<path class=${line.has(each) ? "line" : ""} d=${curve(parent, each)} />`)}
      ${shown.map(([i, parent]) => {
        const each = versions[i], x = across(i), y = down(i);
        const words = `${each.name}${each.is_best ? ", the best" : ""}${parent === null ? "" : `, made from ${versions[parent].name}`}: ${each.mean === null ? "not tried" : number(each.mean)}`;
        const isNamed = step >= 28 || i === chosen || each.is_best || i === 0;
        return html`<a key=${i} href=${each.href} aria-label=${words} class="${i === chosen ? "chosen" : ""} ${each.is_best ? "best" : ""} ${each.mean === null ? "untried" : ""}"><title>${words}</title>
          <circle class="reach" cx=${x} cy=${y} r=${2 * radius} /><circle class="node" cx=${x} cy=${y} r=${radius} style=${{ "--share": each.mean === null ? "0%" : share(each.mean) }} />${isNamed && html`<text x=${x} y=${y + 21} text-anchor="middle">${each.name}</text>`}</a>`;
      })}
    </svg></div>
    <p class="note">The higher its mean reward, the darker a version${versions.some((each) => each.is_best) ? "; the best has a green ring" : ""}.${shown.length < versions.length ? ` ${count(versions.length - shown.length)} versions that no other was made from are left out.` : ""}</p>`;
}
