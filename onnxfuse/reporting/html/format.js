"use strict";
// Numbers as people read them, as onnxfuse/cli/quantities.py writes them, and elements made without any HTML in strings.

const digits = (value) => String(Number(value.toPrecision(3)));
const whole = (value) => value.toLocaleString("en-US");

function scaled(count, units, last, plain = 0) {
  for (const [index, unit] of units.entries()) {
    if (Math.abs(count) < 999.5) return `${index < plain ? count.toFixed(0) : digits(count)} ${unit}`;
    count /= 1000;
  }
  return `${digits(count)} ${last}`;
}

const humanBytes = (count) => scaled(count, ["B", "kB", "MB", "GB"], "TB", 1);
const humanFlops = (count) => scaled(count, ["flop", "kflop", "Mflop", "Gflop"], "Tflop", 1);
const humanTime = (nanoseconds) => scaled(nanoseconds / 1e3, ["µs", "ms"], "s");
const percent = (part, all) => (all ? `${digits(100 * part / all)} %` : "");
function change(before, after) {
  const by = before ? Math.round(100 * (after / before - 1)) : 0;
  return by ? `${by > 0 ? "+" : "−"}${Math.abs(by)} %` : "";
}
const plural = (count, one, many) => `${whole(count)} ${count === 1 ? one : many}`;

// An element with attributes and children; whatever is a string becomes text, never markup.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const byId = (id) => document.getElementById(id);

// A bar as long as `part` is of `longest`; segments are pairs of a class and a length.
function bar(segments, longest) {
  const found = make("span", { class: "bar", "aria-hidden": "true" });
  for (const [name, length] of segments) {
    if (!(length > 0) || !longest) continue;
    const piece = make("i", { class: name });
    piece.style.width = `${Math.max(100 * length / longest, 0.4)}%`;
    found.append(piece);
  }
  return found;
}

const segments = (spent) => [["bar-launch", spent.launch], ["bar-memory", spent.memory], ["bar-compute", spent.compute]];
const BOUNDS = { m: "memory", c: "compute", l: "launches", "-": "" };
