"use strict";
/* Words and numbers, as people read them. */

/**
 * Write a number: with as many decimals as are given, else with two, or with three digits where two decimals do not tell.
 * @param {number | null | undefined} value
 * @param {number} [digits]
 * @returns {string}
 */
function number(value, digits) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (digits === undefined && value !== 0 && (size < 1e-4 || size >= 1e6)) return Number(value.toPrecision(3)).toExponential().replace("e+", "e");
  if (digits === undefined && value !== 0 && size < 0.01) return value.toLocaleString("en", { maximumSignificantDigits: 3 });
  return value.toLocaleString("en", { minimumFractionDigits: digits ?? 2, maximumFractionDigits: digits ?? 2 });
}
/** @param {number | null | undefined} value */
const count = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));
/**
 * Write a difference. One below 1e-12 is what floats leave of none.
 * @param {number} value
 */
const signed = (value) => (!Number.isFinite(value) ? "–" : Math.abs(value) < 1e-12 ? "±0.00" : `${value > 0 ? "+" : "−"}${number(Math.abs(value))}`);
/**
 * Tell how much better a sample got. To give no reward any more is the greatest loss.
 * @param {number | null} before
 * @param {number | null} after
 */
const change = (before, after) => (before === null ? (after === null ? 0 : Infinity) : after === null ? -Infinity : after - before);
/**
 * Write the reward of a sample that was tried.
 * @param {number | null} value
 */
const reward = (value) => (value === null ? "none" : number(value));
/** @param {{n: number, lost: number}} found */
const samplesTold = ({ n, lost }) => `${count(n)} ${n === 1 ? "sample" : "samples"}${lost ? `, ${count(lost)} more without a reward` : ""}`;

/** @param {number | null | undefined} value Seconds. */
function duration(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 59.95) return `${value.toFixed(1)} s`;
  const whole = Math.round(value), minutes = Math.floor(whole / 60);
  return minutes < 60
    ? `${minutes} min ${whole % 60} s`
    : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** @param {number | null} seconds Since the epoch. */
const moment = (seconds) =>
  seconds === null ? "–" : new Date(seconds * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short", timeZone: kept().zone || undefined });

/** @param {number} seconds Since the epoch. */
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB", { timeZone: kept().zone || undefined });

/**
 * Tell how long ago something was, to the second.
 * @param {number | null} seconds Since the epoch.
 * @param {number} now Since the epoch.
 */
const ago = (seconds, now) => {
  if (seconds === null) return "–";
  const whole = Math.max(0, Math.round(now - seconds));
  return whole < 60 ? `${whole} s` : duration(whole);
};

/**
 * What a person has set for this page, in this browser.
 * @returns {Settings}
 */
function kept() {
  try {
    return { theme: "", zone: "", ...JSON.parse(localStorage.getItem("agl-settings") || "{}") };
  } catch {
    return { theme: "", zone: "" }; // a browser that keeps nothing for files
  }
}

/** @param {Settings} settings */
function keep(settings) {
  try {
    localStorage.setItem("agl-settings", JSON.stringify(settings));
  } catch {
    // then they hold until the page is closed
  }
}

/**
 * Return the text of a sample: the first text that is in it, or its JSON. What would turn its direction is escaped.
 * @param {Json | undefined} input
 */
const sampleText = (input) => sampleWords(input).replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);
/**
 * @param {Json | undefined} input
 * @returns {string}
 */
function sampleWords(input) {
  if (typeof input === "string") return input;
  const whole = JSON.stringify(input) ?? "";
  if (input && typeof input === "object" && !Array.isArray(input)) {
    const texts = Object.values(input).filter((each) => typeof each === "string");
    const longest = texts.reduce((a, b) => (b.length > a.length ? b : a), "");
    if (longest.length * 2 > whole.length) return longest; // the rest, such as an id, says little beside it
  }
  return whole;
}

/** @type {Record<string, string>} */
const MODES = { train: "training", val: "validation", test: "held out" };
/** @param {Mode} mode */
const modeName = (mode) => MODES[mode ?? ""] || "other";
/** @param {Mode} mode */
const samplesName = (mode) => `${modeName(mode)} samples`.replace("held out", "held-out");

/**
 * Compare two texts line by line: a longest common subsequence.
 * @param {string} before
 * @param {string} after
 */
function lineDiff(before, after) {
  const a = before.split("\n"), b = after.split("\n");
  if (a.length * b.length > 4_000_000) return [...a.map((text) => ({ sign: "-", text })), ...b.map((text) => ({ sign: "+", text }))];
  const lengths = Array.from({ length: a.length + 1 }, () => new Uint32Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      lengths[i][j] = a[i] === b[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
  const lines = [];
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) lines.push({ sign: " ", text: a[i++] }), j++;
    else if (j < b.length && (i === a.length || lengths[i][j + 1] > lengths[i + 1][j])) lines.push({ sign: "+", text: b[j++] });
    else lines.push({ sign: "-", text: a[i++] });
  }
  return lines;
}

/**
 * @param {string} text
 * @param {HTMLButtonElement} button Says that it is done.
 */
function copy(text, button) {
  const before = button.textContent, said = (/** @type {string} */ words) => { button.textContent = words; setTimeout(() => (button.textContent = before), 1500); };
  if (!navigator.clipboard) return said("This browser does not let a file copy");
  navigator.clipboard.writeText(text).then(() => said("Copied"), () => said("Not allowed"));
}
