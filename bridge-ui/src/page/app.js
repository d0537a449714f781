"use strict";
// The page of `bridge ui`. It asks for what is shown, once a second for what is new, and draws the rest from what it has.

const $ = (id) => document.getElementById(id);
const START = 0; // of navigation, on the clock of performance.now()
const MOST_AT_FIRST = 60;
const RAW_RUNS = 12; // with more runs in a chart, raw values and marks of single steps are left out
const state = {
  runs: [], figures: [], figuresOf: "", picked: [], charts: [], tag: "", problems: [], chosen: null, shown: null,
  view: null, curvesOf: "", hover: null, drag: null, detail: "",
};
const dark = matchMedia("(prefers-color-scheme: dark)");
const BOX = { left: 72, right: 16, top: 12, bottom: 42 };

// ---- numbers and elements

function number(value, digits = 5) {
  if (value === null || value === undefined) return "-";
  if (typeof value !== "number") return String(value);
  if (value !== 0 && (Math.abs(value) >= 1e7 || Math.abs(value) < 1e-4)) return value.toExponential(Math.max(0, digits - 2));
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(digits)));
}
function prefixed(value) {
  if (value === null || value === undefined) return "-";
  for (const [size, sign] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(value) >= size) return Number((value / size).toPrecision(3)) + " " + sign;
  return String(Number(value.toPrecision(3)));
}
function bytes(value) {
  for (const [size, sign] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (value >= size) return (value / size).toFixed(1) + " " + sign;
  return value + " B";
}
function moment(seconds) {
  const at = new Date(seconds * 1000), two = (part) => String(part).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${[at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":")}`;
}
function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "-";
  if (seconds < 1) return Math.round(seconds * 1000) + " ms";
  if (seconds < 120) return seconds.toFixed(seconds < 10 ? 1 : 0) + " s";
  if (seconds < 7200) return Math.floor(seconds / 60) + " min " + Math.round(seconds % 60) + " s";
  if (seconds < 172800) return Math.floor(seconds / 3600) + " h " + Math.round(seconds % 3600 / 60) + " min";
  return (seconds / 86400).toFixed(1) + " days";
}
function element(name, options = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}
function table(head, rows, numeric = []) {
  const cell = (name) => (content, place) =>
    element(name, numeric.includes(place) ? { class: "number" } : {}, content instanceof Node ? content : String(content ?? "-"));
  return element("table", {}, element("thead", {}, element("tr", {}, ...head.map(cell("th")))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell("td"))))));
}

// ---- runs

const FIRST = [[210, 72], [25, 85], [140, 55], [355, 70], [270, 50], [185, 70], [320, 60], [50, 80]];
function colour(run) {
  const place = state.runs.indexOf(run);
  const [hue, strength] = FIRST[place] ?? [(place * 137.508) % 360, 55 + (place % 3) * 12];
  return `hsl(${hue.toFixed(0)} ${strength}% ${dark.matches ? 64 : 42}%)`;
}
const byId = (id) => state.runs.find((run) => run.id === id);
function chosenRuns() { return state.runs.filter((run) => state.chosen.has(run.id)); }
function label(run) {
  const same = state.runs.filter((other) => other.head.name === run.head.name).length > 1;
  return same ? run.folder : run.head.name;
}

function showRuns() {
  const filter = $("filter").value.toLowerCase();
  const list = $("runs"), top = list.scrollTop;
  const focused = document.activeElement?.dataset?.run;
  const rows = state.runs.filter((run) => (label(run) + " " + run.folder + " " + run.head.state).toLowerCase().includes(filter)).map((run) => {
    const { head } = run, on = state.chosen.has(run.id);
    const box = element("input", { type: "checkbox", checked: on, "aria-label": "show " + label(run), onclick: (event) => event.stopPropagation(), onchange: () => {
      if (box.checked) state.chosen.add(run.id); else state.chosen.delete(run.id);
      chosenChanged();
    } });
    box.dataset.run = run.id;
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = colour(run);
    const of = head.train_iters ? "/" + head.train_iters : "";
    const reading = run.reading === "sample" && run.size ? " · reading " + Math.floor(100 * run.read / run.size) + "%" : run.reading === "no room" ? " · sample only" : "";
    const speed = head.tokens_per_second ? " · " + prefixed(head.tokens_per_second) + " tok/s" : "";
    const damaged = run.damaged ? element("span", { class: "bad" }, ` · ${run.damaged} damaged lines`) : null;
    const problem = run.problem ?? head.problem;
    return element("div", { class: "entry" + (on ? "" : " off") + (state.shown === run.id ? " shown" : ""), title: problem ?? run.folder, onclick: () => showRun(run.id) },
      box, swatch, element("span", { class: "name" }, label(run)), element("span", { class: "state " + head.state }, head.state),
      element("span", { class: "figures" }, `${head.iterations}${of} · loss ${number(head.last_loss)}${speed}${reading}`, damaged,
        problem ? element("span", { class: "bad" }, " · " + problem) : null));
  });
  list.replaceChildren(...rows);
  list.scrollTop = top;
  if (focused) list.querySelector(`input[data-run="${focused}"]`)?.focus({ preventScroll: true });
}

let looking = false;
async function look() {
  if (looking) return;
  looking = true;
  try {
    const response = await fetch("/api/runs", { headers: state.tag ? { "If-None-Match": state.tag } : {}, cache: "no-store" });
    $("status").classList.remove("bad");
    if (response.status === 200) {
      state.tag = response.headers.get("etag") ?? "";
      const { root, runs, figures, problems } = await response.json();
      Object.assign(state, { runs, figures, problems });
      if (state.chosen === null) state.chosen = new Set(runs.slice(0, MOST_AT_FIRST).map((run) => run.id));
      else for (const run of runs) if (!state.known.has(run.id) && state.chosen.size < MOST_AT_FIRST) state.chosen.add(run.id);
      state.known = new Set(runs.map((run) => run.id));
      $("root").textContent = root;
      const training = runs.filter((run) => run.head.state === "training").length;
      const reading = runs.filter((run) => run.reading === "sample").length;
      $("status").textContent = `${runs.length} ${runs.length === 1 ? "run" : "runs"}` + (training ? `, ${training} training` : "") + (reading ? `, reading ${reading}` : "") + (problems.length ? `, ${problems.length} problems` : "");
      $("status").title = problems.join("\n");
      showRuns();
      showFigures();
      if (versions() !== state.curvesOf) await load();
      if (state.shown === null && runs.length) state.shown = runs[0].id, $("which").textContent = label(runs[0]);
      if (!state.begun) state.begun = true, selectTab(runs.length > 1 ? "differences" : "run");
    }
  } catch (error) {
    $("status").textContent = "the server does not answer";
    $("status").classList.add("bad");
  } finally {
    looking = false;
  }
}

// ---- figures

const FIRST_FIGURES = ["loss", "learning_rate", "grad_norm", "tokens_per_second"];
const EXACT = /learning_rate|weight_decay|batch_size|samples|loss_scale|skipped/; // figures without noise, which are not smoothed
const MOST_SHOWN = 300; // figures in the list
const KINDS = { train: "training", valid: "validation", test: "test" };
const DASHES = { train: [], valid: [6, 4], test: [2, 3] };

/// A figure is a name; its curves are of the kinds of lines that have it, in one chart.
function kindsOf(name) {
  return state.figures.filter(([, of]) => of === name).map(([kind]) => kind).sort((a, b) => (b === "train") - (a === "train"));
}
function showFigures() {
  const wanted = JSON.stringify(state.figures);
  if (state.figuresOf === wanted) return;
  state.figuresOf = wanted;
  const names = new Set(state.figures.map(([, name]) => name));
  if (!state.picked.length) state.picked = FIRST_FIGURES.filter((name) => names.has(name));
  if (!state.picked.length && names.size) state.picked = [[...names][0]];
  listFigures();
  arrangeCharts();
}
function listFigures() {
  const filter = $("figure-filter").value.toLowerCase();
  const names = [...new Set(state.figures.map(([, name]) => name))].filter((name) => name.toLowerCase().includes(filter));
  names.sort((a, b) => state.picked.includes(b) - state.picked.includes(a) || a.localeCompare(b));
  const choice = (name) => {
    const box = element("input", { type: "checkbox", checked: state.picked.includes(name), onchange: () => {
      state.picked = box.checked ? [...state.picked, name] : state.picked.filter((other) => other !== name);
      arrangeCharts();
      load();
    } });
    return element("label", {}, box, `${name} (${kindsOf(name).map((kind) => KINDS[kind] ?? kind).join(", ") || "other"})`);
  };
  const left = names.length - MOST_SHOWN;
  $("figure-list").replaceChildren(...names.slice(0, MOST_SHOWN).map(choice),
    ...(left > 0 ? [element("span", { class: "soft" }, `and ${left} more: filter them`)] : []));
  $("figure-count").textContent = state.picked.length;
}
function arrangeCharts() {
  const known = new Map(state.charts.map((chart) => [chart.name, chart]));
  state.charts = state.picked.map((name) => known.get(name) ?? makeChart(name));
  $("plots").replaceChildren(...state.charts.map((chart) => chart.box));
  state.charts.forEach((chart, place) => { chart.canvas.id = place === 0 ? "chart" : ""; });
  $("figure-count").textContent = state.picked.length;
  draw();
}

// ---- curves

const versions = () => chosenRuns().map((run) => `${run.id}.${run.version}`).join(",");

function query(kind, name, width) {
  const many = state.chosen.size > 12;
  const points = Math.round(Math.min(1200, Math.max(150, width * (many ? 0.4 : 1))));
  const range = state.view ? `&from=${state.view[0]}&to=${state.view[1]}` : "";
  const names = `kind=${encodeURIComponent(kind)}&name=${encodeURIComponent(name)}`;
  const smooth = $("smooth").checked && kind === "train" && !EXACT.test(name) ? 1 : 0;
  return `${names}&x=${$("axis").value}&points=${points}&smooth=${smooth}${range}`;
}
let request = null, timer = 0;
async function load() {
  request?.abort();
  const own = request = new AbortController();
  const of = versions();
  const ids = chosenRuns().map((run) => run.id).join(",");
  const one = async (chart, kind) => {
    const response = await fetch(`/api/series?runs=${ids}&${query(kind, chart.name, chart.canvas.clientWidth)}`, { signal: own.signal, cache: "no-store" });
    if (!response.ok) throw new Error(await response.text());
    return [kind, await response.json()];
  };
  try {
    const wanted = state.charts.map((chart) => Promise.all(ids ? kindsOf(chart.name).map((kind) => one(chart, kind)) : []));
    const found = await Promise.all(wanted);
    if (own !== request) return;
    state.charts.forEach((chart, place) => { if (found[place]) chart.curves = Object.fromEntries(found[place]); });
    state.curvesOf = of;
    draw();
  } catch (error) {
    if (error.name !== "AbortError") $("note").textContent = error.message;
  }
}
/// Asks for what the view needs, once it is still for a moment; until then what is there is drawn.
function loadSoon() {
  state.moving = true;
  draw();
  clearTimeout(timer);
  timer = setTimeout(() => { state.moving = false; load(); }, 80);
}
/// The curves of a chart: of each chosen run and each kind of line that has the figure.
function curvesOf(chart) {
  return chosenRuns().flatMap((run) => Object.entries(chart.curves).flatMap(([kind, of]) => {
    const curve = of[run.id];
    return curve?.x.length ? [{ run, kind, curve }] : [];
  }));
}
function wholeRange() {
  let from = Infinity, to = -Infinity;
  for (const chart of state.charts)
    for (const { curve } of curvesOf(chart)) if (curve.ends) from = Math.min(from, curve.ends[0]), to = Math.max(to, curve.ends[1]);
  return from <= to ? [from, to === from ? from + 1 : to] : [0, 1];
}
const range = () => state.view ?? wholeRange();

let pending = 0;
function draw() {
  if (!pending) pending = requestAnimationFrame(() => { pending = 0; drawAll(); });
}
function valueRange(curves, from, to, isLog) {
  let low = Infinity, high = -Infinity;
  const lines = $("lines").checked;
  for (const { curve } of curves) {
    const line = curve.smooth ?? curve.mean;
    for (let i = 0; i < curve.x.length; i++) {
      if (curve.x[i] < from || curve.x[i] > to) continue;
      const [least, most] = lines ? [line[i], line[i]] : [curve.min[i], curve.max[i]];
      if (!isLog || least > 0) low = Math.min(low, least);
      if (!isLog || most > 0) high = Math.max(high, most), low = Math.min(low, most);
    }
  }
  if (low > high) return isLog ? [0.1, 1] : [0, 1];
  if (isLog) return low === high ? [low / 2, high * 2] : [low / (high / low) ** 0.04, high * (high / low) ** 0.04];
  const margin = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
  return [low - margin, high + margin];
}
function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw) * power;
  const found = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9 && found.length < 100; i++) found.push(i * step);
  return found;
}
function logTicks(low, high) {
  const found = [], few = Math.log10(high / low) < 1.5;
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high) && found.length < 60; power++)
    for (const factor of few ? [1, 2, 3, 4, 5, 7] : Math.log10(high / low) < 4 ? [1, 3] : [1]) {
      const at = factor * 10 ** power;
      if (at >= low && at <= high) found.push(at);
    }
  return found;
}
function drawAll() {
  const started = performance.now();
  const [from, to] = range();
  const notes = { dropped: 0, samples: 0 };
  for (const chart of state.charts) drawChart(chart, from, to, notes);
  $("note").textContent = [notes.dropped ? `${notes.dropped} values are not finite and left out` : "", notes.samples ? `${notes.samples} curves from a sample` : ""].filter(Boolean).join(" · ");
  const root = document.documentElement.dataset;
  const all = state.charts.flatMap(curvesOf);
  if (all.length && !root.drawn) root.drawn = Math.round(performance.now() - START);
  root.drawing = Math.round((performance.now() - started) * 10) / 10;
  root.shape = `${chosenRuns().length} ${all.reduce((sum, { curve }) => sum + curve.x.length, 0)} ${notes.samples}`;
}
function drawChart(chart, from, to, notes) {
  const { canvas, paint } = chart;
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  const width = canvas.clientWidth, height = canvas.clientHeight, ratio = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  paint.setTransform(ratio, 0, 0, ratio, 0, 0);
  paint.clearRect(0, 0, width, height);
  const curves = curvesOf(chart), runs = chosenRuns(), isLog = $("log").checked;
  const [low, high] = valueRange(curves, from, to, isLog);
  const inner = { width: Math.max(1, width - BOX.left - BOX.right), height: Math.max(1, height - BOX.top - BOX.bottom) };
  const place = isLog ? Math.log : (value) => value, base = place(low), extent = place(high) - base || 1;
  const x = (value) => BOX.left + (value - from) / (to - from) * inner.width;
  const y = (value) => BOX.top + inner.height * (1 - (place(isLog ? Math.max(value, low / 1e3) : value) - base) / extent);
  chart.scale = { from, to, inner, x, y };
  paint.font = "12px system-ui, sans-serif";
  paint.lineWidth = 1;
  paint.setLineDash([]);
  paint.strokeStyle = of("--rule");
  paint.fillStyle = of("--soft");
  paint.textBaseline = "middle";
  paint.textAlign = "right";
  for (const at of isLog ? logTicks(low, high) : ticks(low, high, inner.height / 45)) {
    paint.beginPath(); paint.moveTo(BOX.left, y(at)); paint.lineTo(width - BOX.right, y(at)); paint.stroke();
    paint.fillText(number(Math.abs(at) < extent * 1e-9 && !isLog ? 0 : at, 6), BOX.left - 8, y(at));
  }
  paint.textAlign = "center";
  paint.textBaseline = "top";
  const axis = $("axis").value;
  for (const at of ticks(from, to, inner.width / 110)) {
    paint.beginPath(); paint.moveTo(x(at), BOX.top); paint.lineTo(x(at), BOX.top + inner.height); paint.stroke();
    paint.fillText(axis === "time" ? duration(at) : to - from > 1e4 ? prefixedExactly(at) : number(at, 8), x(at), BOX.top + inner.height + 6);
  }
  paint.fillText({ step: "iteration", tokens: "tokens", time: "time in steps" }[axis], BOX.left + inner.width / 2, height - 16);
  paint.save();
  paint.beginPath(); paint.rect(BOX.left, BOX.top, inner.width, inner.height); paint.clip();
  for (const { run, kind, curve } of curves) {
    notes.dropped += curve.not_finite;
    notes.samples += curve.whole ? 0 : 1;
    drawCurve(chart, curve, kind, colour(run), runs.length);
  }
  paint.restore();
  paint.setLineDash([]);
  if (!curves.length && state.begun) {
    paint.textBaseline = "middle";
    paint.fillText(runs.length ? "no values here" : "no run is chosen", BOX.left + inner.width / 2, BOX.top + inner.height / 2);
  }
  showKey(chart, curves, runs.length);
  drawOver(chart);
}
/// Says above a chart which of its lines is what.
function showKey(chart, curves, count) {
  const kinds = [...new Set(curves.map(({ kind }) => kind))];
  const isSmoothed = curves.some(({ curve }) => curve.smooth);
  const key = (name, kind, className) => element("span", { class: "key " + className }, element("span", { class: "line " + kind }), name);
  const parts = kinds.flatMap((kind) => {
    const name = KINDS[kind] ?? (kind || "other");
    return kind === "train" && isSmoothed && count <= RAW_RUNS ? [key(name, kind, "raw"), key(name + ", smoothed", kind, "")] : [key(kind === "train" && isSmoothed ? name + ", smoothed" : name, kind, "")];
  });
  chart.key.replaceChildren(...parts);
}
/// What follows the pointer; curves stay as they are.
function drawOver(chart) {
  const { canvas, over, pen, scale } = chart;
  if (!scale) return;
  const ratio = devicePixelRatio || 1;
  if (over.width !== canvas.width || over.height !== canvas.height) over.width = canvas.width, over.height = canvas.height;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, over.width, over.height);
  const style = getComputedStyle(document.documentElement), { inner } = scale;
  const hover = state.hover && (state.hover.chart === chart ? state.hover.x : scale.x(state.hover.at));
  if (state.drag?.kind === "range" && state.drag.chart === chart) {
    pen.globalAlpha = 0.18;
    pen.fillStyle = style.getPropertyValue("--accent");
    pen.fillRect(Math.min(state.drag.x, state.drag.at), BOX.top, Math.abs(state.drag.at - state.drag.x), inner.height);
    pen.globalAlpha = 1;
  } else if (hover && hover >= BOX.left && hover <= BOX.left + inner.width) {
    pen.strokeStyle = style.getPropertyValue("--soft");
    pen.beginPath(); pen.moveTo(hover, BOX.top); pen.lineTo(hover, BOX.top + inner.height); pen.stroke();
  }
  showTip(chart);
}
let pendingOver = 0;
function point() {
  if (!pendingOver) pendingOver = requestAnimationFrame(() => { pendingOver = 0; state.charts.forEach(drawOver); });
}
function prefixedExactly(value) {
  for (const [size, sign] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(value) >= size) return Number((value / size).toPrecision(6)) + " " + sign;
  return number(value, 6);
}
function drawCurve({ paint, scale }, curve, kind, tone, count) {
  const { x, y } = scale, isTraining = kind === "train";
  // What is seen, and a point on either side.
  const first = Math.max(0, place(curve.x, scale.from) - 1), last = Math.min(curve.x.length, place(curve.x, scale.to) + 2);
  const stroke = (line) => {
    paint.beginPath();
    for (let i = first; i < last; i++) paint.lineTo(x(curve.x[i]), y(line[i]));
    paint.stroke();
  };
  const line = curve.smooth ?? curve.mean;
  paint.strokeStyle = paint.fillStyle = tone;
  paint.lineJoin = "round";
  paint.setLineDash([]);
  if (isTraining && !(state.moving && count > RAW_RUNS)) drawBand(paint, curve, first, last, count, x, y);
  if (curve.smooth && count <= RAW_RUNS) {
    paint.globalAlpha = 0.35;
    paint.lineWidth = 1;
    stroke(curve.mean);
  }
  paint.globalAlpha = 1;
  paint.lineWidth = isTraining ? (count > RAW_RUNS ? 1.2 : 1.8) : 1.4;
  paint.setLineDash(DASHES[kind] ?? []);
  stroke(line);
  paint.setLineDash([]);
  const radius = isTraining ? 2 : 2.5;
  if (last - first <= 60) for (let i = first; i < last; i++) paint.fillRect(x(curve.x[i]) - radius, y(line[i]) - radius, 2 * radius, 2 * radius);
}
/// The first place that is not below a value.
function place(values, at) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < at) low = middle + 1; else high = middle;
  }
  return low;
}
function drawBand(paint, curve, first, last, count, x, y) {
  // What single values do: a band from the least to the largest of each stretch.
  paint.globalAlpha = count > RAW_RUNS ? 0.1 : 0.13;
  paint.beginPath();
  for (let i = first; i < last; i++) paint.lineTo(x(curve.x[i]), y(curve.max[i]));
  for (let i = last - 1; i >= first; i--) paint.lineTo(x(curve.x[i]), y(curve.min[i]));
  paint.closePath();
  paint.fill();
  if (count <= RAW_RUNS) {
    paint.globalAlpha = 0.18;
    paint.lineWidth = 1;
    paint.beginPath();
    for (let i = first; i < last; i++) {
      const at = x(curve.x[i]), top = y(curve.max[i]), bottom = y(curve.min[i]);
      if (bottom - top > 1) paint.moveTo(at, top), paint.lineTo(at, bottom);
    }
    paint.stroke();
  }
}

// ---- hovering, zooming, moving

function nearest(values, at) {
  let low = 0, high = values.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] < at) low = middle; else high = middle;
  }
  return Math.abs(values[low] - at) <= Math.abs(values[high] - at) ? low : high;
}
function showTip(chart) {
  const { tip, scale } = chart;
  tip.hidden = true;
  if (!state.hover || state.hover.chart !== chart || state.drag || !scale) return;
  const at = valueAt(chart, state.hover.x), room = (scale.to - scale.from) * 0.02;
  const rows = [];
  for (const { run, kind, curve } of curvesOf(chart)) {
    if (at < curve.x[0] - room || at > curve.x.at(-1) + room) continue;
    const i = nearest(curve.x, at), line = (curve.smooth ?? curve.mean)[i];
    rows.push({ run, kind, x: curve.x[i], line, mean: curve.mean[i], min: curve.min[i], max: curve.max[i], far: Math.abs(scale.y(line) - state.hover.y) });
  }
  if (!rows.length) return;
  rows.sort((a, b) => a.far - b.far);
  const shown = rows.slice(0, 10).sort((a, b) => b.line - a.line);
  const axis = $("axis").value, where = rows[0].x;
  const title = { step: "iteration " + number(Math.round(where), 9), tokens: prefixed(where) + " tokens", time: duration(where) }[axis];
  const left = rows.length - shown.length;
  tip.replaceChildren(element("div", { class: "soft" }, title), ...shown.map((row) => {
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = colour(row.run);
    const spread = row.min !== row.max ? ` (${number(row.min, 4)} to ${number(row.max, 4)})` : "";
    const of = row.kind === "train" ? "" : ", " + (KINDS[row.kind] ?? row.kind);
    return element("div", { class: "row" }, swatch, element("span", {}, label(row.run) + of), element("span", {}, number(row.mean) + spread));
  }), ...(left ? [element("div", { class: "soft" }, `and ${left} more`)] : []));
  tip.hidden = false;
  const box = chart.plot.getBoundingClientRect();
  const x = state.hover.x + 16 + tip.offsetWidth > box.width ? state.hover.x - tip.offsetWidth - 16 : state.hover.x + 16;
  tip.style.left = Math.max(0, x) + "px";
  tip.style.top = Math.max(0, Math.min(state.hover.y - 10, box.height - tip.offsetHeight)) + "px";
}
function setView(from, to) {
  const [first, last] = wholeRange();
  const width = to - from;
  if (from <= first && to >= last) state.view = null;
  else if (width > (last - first) * 1e-7) {
    if (from < first) from = first, to = Math.min(last, first + width);
    else if (to > last) to = last, from = Math.max(first, last - width);
    state.view = [from, to];
  }
  loadSoon();
}
function zoom(factor, at) {
  const [from, to] = range();
  setView(at - (at - from) * factor, at + (to - at) * factor);
}
const valueAt = ({ scale }, x) => scale.from + (x - BOX.left) / scale.inner.width * (scale.to - scale.from);
/// A chart of the figure `name`. All charts have the same range of the horizontal axis.
function makeChart(name) {
  const canvas = element("canvas", { tabIndex: 0, role: "img", "aria-label": `Curves of ${name} of the chosen runs` });
  const over = element("canvas", { class: "over" }), tip = element("div", { class: "tip", hidden: true }), key = element("span", {});
  const plot = element("div", { class: "plot" }, canvas, over, tip);
  const box = element("figure", {}, element("figcaption", {}, element("strong", {}, name), key), plot);
  const chart = { name, box, plot, canvas, over, tip, key, paint: canvas.getContext("2d"), pen: over.getContext("2d"), curves: {}, scale: null };
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const { scale } = chart;
    if (!scale) return;
    const amount = event.deltaY * (event.deltaMode === 1 ? 16 : 1);
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const move = event.deltaX / scale.inner.width * (scale.to - scale.from);
      return setView(scale.from + move, scale.to + move);
    }
    zoom(Math.exp(Math.max(-0.5, Math.min(0.5, amount * 0.002))), valueAt(chart, event.offsetX));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button > 1 || !chart.scale) return;
    event.preventDefault();
    canvas.focus({ preventScroll: true });
    canvas.setPointerCapture(event.pointerId);
    const kind = event.shiftKey || event.button === 1 ? "move" : "range";
    state.drag = { chart, kind, x: event.offsetX, at: event.offsetX, view: range() };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!chart.scale) return;
    state.hover = { chart, x: event.offsetX, y: event.offsetY, at: valueAt(chart, event.offsetX) };
    const drag = state.drag;
    if (drag) {
      drag.at = event.offsetX;
      if (drag.kind === "move") {
        const by = (drag.x - drag.at) / chart.scale.inner.width * (drag.view[1] - drag.view[0]);
        return setView(drag.view[0] + by, drag.view[1] + by);
      }
    }
    point();
  });
  canvas.addEventListener("pointerup", () => {
    const drag = state.drag;
    state.drag = null;
    if (drag?.kind === "range" && Math.abs(drag.at - drag.x) > 5) {
      const ends = [valueAt(chart, drag.x), valueAt(chart, drag.at)].sort((a, b) => a - b);
      return setView(Math.max(ends[0], chart.scale.from), Math.min(ends[1], chart.scale.to));
    }
    point();
  });
  canvas.addEventListener("pointercancel", () => { state.drag = null; point(); });
  canvas.addEventListener("pointerleave", () => { state.hover = null; point(); });
  canvas.addEventListener("dblclick", () => { state.view = null; loadSoon(); });
  canvas.addEventListener("keydown", (event) => {
    const [from, to] = range(), move = (to - from) * 0.15;
    const keys = {
      ArrowLeft: () => setView(from - move, to - move), ArrowRight: () => setView(from + move, to + move),
      "+": () => zoom(0.7, (from + to) / 2), "=": () => zoom(0.7, (from + to) / 2), "-": () => zoom(1.4, (from + to) / 2),
      0: () => { state.view = null; loadSoon(); },
    };
    if (keys[event.key]) event.preventDefault(), keys[event.key]();
  });
  new ResizeObserver(draw).observe(canvas);
  return chart;
}

// ---- settings, and one run

async function ask(path, section, show) {
  try {
    const response = await fetch(path, { cache: "no-store" });
    if (!response.ok) throw new Error((await response.text()).trim());
    show(await response.json());
  } catch (error) {
    section.replaceChildren(element("p", { class: "bad" }, error.message));
  }
}
function showDifferences() {
  const section = $("differences"), runs = chosenRuns();
  if (!runs.length) return section.replaceChildren(element("p", { class: "soft" }, "Choose runs to compare their settings."));
  ask("/api/differences?runs=" + runs.map((run) => run.id).join(","), section, ({ runs: ids, unknown, differences }) => {
    const parts = [figuresOfRuns(runs)];
    if (unknown.length) parts.push(element("p", { class: "soft" }, "Without run.json, so that their settings are not known: " + unknown.map((id) => label(byId(id))).join(", ")));
    if (differences.length) {
      parts.push(element("h2", {}, "Settings that differ"));
      const name = (id) => {
        const run = byId(id), text = run ? label(run) : String(id);
        return element("span", { title: text }, text);
      };
      parts.push(table(["setting", ...ids.map(name)], differences.map(({ key, values }) => [key, ...values.map((value) => value ?? "-")])));
    } else if (ids.length) parts.push(element("p", { class: "soft" }, ids.length > 1 ? "No setting differs." : "Choose another run on the left to compare their settings."));
    section.replaceChildren(...parts);
  });
}
function figuresOfRuns(runs) {
  const best = (run) => run.best_valid ? `${number(run.best_valid[0])} at ${run.best_valid[1]}` : null;
  return table(["run", "state", "iterations", "loss", "best validation loss", "tokens a second"], runs.map((run) => [
    label(run), element("span", { class: "state " + run.head.state }, run.head.state),
    run.head.iterations + (run.head.train_iters ? "/" + run.head.train_iters : ""), number(run.head.last_loss), best(run),
    run.head.tokens_per_second ? prefixed(run.head.tokens_per_second) : null]), [2, 3, 4, 5]);
}
function showRun(id) {
  state.shown = id;
  showRuns();
  selectTab("run");
}
function showDetails() {
  const run = byId(state.shown), section = $("run");
  $("which").textContent = run ? label(run) : "-";
  if (!run) return section.replaceChildren(element("p", { class: "soft" }, "Choose a run on the left."));
  ask("/api/run?run=" + run.id, section, (found) => {
    if (found.id !== state.shown) return;
    const text = JSON.stringify(found);
    if (text === state.detail && section.childElementCount) return;
    state.detail = text;
    section.replaceChildren(...details(run, found));
  });
}
function signs({ supervision, scores }, state) {
  const parts = [];
  if (supervision) {
    const { restarts, max_restarts, ranks, written } = supervision;
    parts.push(element("p", {}, restarts.length ? `Started again ${restarts.at(-1).number} of at most ${max_restarts} times.` : `Supervised; at most ${max_restarts} restarts, none so far.`));
    if (restarts.length) parts.push(table(["restart", "at", "because the run", "from"], restarts.map(({ number, at, why, from }) => [number, moment(at), why, from]), [0]));
    if (ranks.length) parts.push(table(["rank", "at", "for", "may take", "heard", "process"], ranks.map((rank) => {
      const silent = state === "training" && written - rank.heard > 10;
      const late = rank.limit !== null && rank.seconds > rank.limit / 2;
      return [rank.rank, rank.section, duration(rank.seconds), rank.limit === null ? "-" : duration(rank.limit),
        element("span", silent || late ? { class: "bad" } : {}, moment(rank.heard)), rank.process];
    }), [0]));
  }
  if (scores) {
    const score = (value) => value === null ? "-" : value.toFixed(2);
    const part = (seconds) => (seconds * 1000).toFixed(1) + " ms";
    parts.push(element("p", {}, `Scores of ranks at step ${scores.iteration}: 1 is as fast as the others, or as before.`));
    parts.push(table(["rank", "node", "to others", "to its past", "works", "waits for data", "in calls"], scores.ranks.map((rank) => [
      element("span", rank.is_slow ? { class: "bad" } : {}, rank.is_slow ? rank.rank + " is slow" : String(rank.rank)), rank.node,
      score(rank.relative), score(rank.individual), ...rank.times.map(part)]), [2, 3, 4, 5, 6]));
  }
  return parts;
}
function details(run, { head, checkpoints, health, traces, config }) {
  const facts = [
    ["folder", run.folder], ["state", head.state + (head.why ? ": " + head.why : "")],
    ["iterations", head.iterations + (head.train_iters ? " of " + head.train_iters : "")],
    ["loss", head.last_loss === null ? null : number(head.last_loss)],
    ["best validation loss", run.best_valid ? `${number(run.best_valid[0])} at iteration ${run.best_valid[1]}` : null],
    ["speed", head.tokens_per_second ? prefixed(head.tokens_per_second) + " tokens a second" : null],
    ["started", head.started], ["ended", head.ended], ["ranks", head.world_size],
    ["step", head.seconds ? duration(head.seconds) : null], ["identity", head.run],
  ].filter(([, value]) => value !== null && value !== undefined);
  const parts = [element("dl", {}, ...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]))];
  parts.push(element("h2", {}, "Checkpoints"));
  if (checkpoints.note) parts.push(element("p", { class: "soft" }, checkpoints.note));
  if (checkpoints.list.length) parts.push(table(["iteration", "size", "saved", "", "folder"], checkpoints.list.map((saved) => [
    saved.iteration, bytes(saved.bytes), saved.saved ? moment(saved.saved) : null,
    [saved.latest && "latest", saved.best && "best", ...saved.damage].filter(Boolean).join(", "), `${checkpoints.place}/${saved.name}`]), [0, 1]));
  else if (!checkpoints.note) parts.push(element("p", { class: "soft" }, "None."));
  parts.push(element("h2", {}, "Health"));
  if (head.state === "training" && head.written) {
    const quiet = Date.now() / 1000 - head.written, usual = head.seconds ?? 0;
    const slow = quiet > Math.max(30, usual * 10);
    parts.push(element("p", slow ? { class: "bad" } : {}, slow ? `No step for a long time: the last figures came ${moment(head.written)}.` : "Figures come as usual."));
  }
  const { skipped, not_finite } = health.steps;
  if (skipped || not_finite) parts.push(element("p", { class: "bad" }, [skipped && `${skipped} steps updated nothing`, not_finite && `${not_finite} losses are not finite`].filter(Boolean).join(", ") + "."));
  parts.push(...signs(health, head.state));
  if (health.flight) {
    for (const { group, operation, sequence, waiting, missing } of health.flight.missing)
      parts.push(element("p", { class: "bad" }, `ranks ${missing.join(", ")} did not come to ${operation} number ${sequence} of ${group}, where ${waiting.join(", ")} waited`));
    parts.push(table(["rank", "node", "was in", "why"], health.flight.ranks.map((rank) => [rank.rank, rank.node, rank.in ? `${rank.in.operation} of ${rank.in.group}` : "no call", rank.why])));
  }
  const { events } = health;
  const level = ({ level }) => element("span", { class: level === "error" ? "bad" : "warn" }, level);
  if (events.length) parts.push(table(["rank", "time", "level", "message"], events.map((event) => [event.rank, event.time, level(event), element("span", { class: "text" }, event.text)]), [0]));
  else parts.push(element("p", { class: "soft" }, "No warning and no error in its logs."));
  parts.push(element("h2", {}, "Traces"));
  if (traces.length) {
    const times = element("div", {});
    const link = (trace) => element("a", { href: `/api/trace?run=${run.id}&file=${encodeURIComponent(trace.name)}`, download: trace.name }, trace.name);
    parts.push(table(["file, for Perfetto", "size"], traces.map((trace) => [link(trace), bytes(trace.bytes)])));
    parts.push(element("p", {}, element("button", { type: "button", onclick: () => ask("/api/times?run=" + run.id, times, (ranks) => {
      const names = [...new Set(ranks.flatMap((rank) => rank.parts.map(({ part }) => part)))];
      times.replaceChildren(table(["rank", "steps", "a step", ...names], ranks.map((rank) => [rank.rank, rank.steps, duration(rank.seconds),
        ...names.map((name) => ((rank.parts.find(({ part }) => part === name)?.seconds ?? 0) / rank.seconds * 100).toFixed(1) + "%")]), [0, 1, 2, ...names.map((_, place) => place + 3)]));
    }) }, "where the time goes")), times);
  } else parts.push(element("p", { class: "soft" }, "None: profiling.use_pytorch_profiler = true writes them."));
  if (config) parts.push(element("h2", {}, "Settings"), element("pre", {}, config));
  return parts;
}
function selectTab(name) {
  for (const tab of document.querySelectorAll("[data-tab]")) {
    tab.setAttribute("aria-selected", String(tab.dataset.tab === name));
    $(tab.dataset.tab).hidden = tab.dataset.tab !== name;
  }
  state.detail = "";
  if (name === "run") showDetails(); else showDifferences();
}
function chosenChanged() {
  showRuns();
  load();
  showDifferences();
}

// ---- the beginning

for (const tab of document.querySelectorAll("[data-tab]")) tab.addEventListener("click", () => selectTab(tab.dataset.tab));
$("filter").addEventListener("input", showRuns);
$("all").addEventListener("click", () => {
  const filter = $("filter").value.toLowerCase();
  for (const run of state.runs) if ((label(run) + " " + run.folder + " " + run.head.state).toLowerCase().includes(filter)) state.chosen.add(run.id);
  chosenChanged();
});
$("none").addEventListener("click", () => { state.chosen.clear(); chosenChanged(); });
$("figure-filter").addEventListener("input", listFigures);
document.addEventListener("click", (event) => { if (!$("figures").contains(event.target)) $("figures").open = false; });
$("axis").addEventListener("change", () => { state.view = null; load(); });
$("smooth").addEventListener("change", load);
for (const name of ["log", "lines"]) $(name).addEventListener("change", draw);
$("reset").addEventListener("click", () => { state.view = null; loadSoon(); });
dark.addEventListener("change", () => { showRuns(); draw(); });
look();
let beat = 0;
setInterval(() => {
  beat++;
  if (document.hidden && beat % 10) return;
  look();
  if (!$("run").hidden && beat % 3 === 0) showDetails();
}, 1000);
