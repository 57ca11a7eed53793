"use strict";

// Everything is put in as text, never as markup: names of workers and models are other people's words.

const $ = (id) => document.getElementById(id);
const DASH = "–";
const SHOWN = 50;
let paused = false;
let lastState = null;
let waiting = [];

function make(tag, text, attributes = {}) {
  const element = document.createElement(tag);
  if (text !== null && text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const known = (value) => value !== null && value !== undefined;
const whole = (value) => (known(value) ? Math.round(value).toLocaleString("en") : DASH);
const percent = (value) => (known(value) ? `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %` : DASH);
function seconds(value) {
  if (!known(value)) return DASH;
  if (value === 0) return "0 s";
  if (value < 1) return `${(1000 * value).toFixed(value < 0.01 ? 1 : 0)} ms`;
  return `${value.toFixed(value < 10 ? 2 : 1)} s`;
}

// --- tiles

function tiles(state) {
  const now = state.now;
  const ttft = (share) => now.ttft[share] || { count: 0, p50: null, p95: null };
  const tail = (t) => (t.count ? `p95 ${seconds(t.p95)}, ${whole(t.count)} answers` : "no streamed answer");
  const rows = [
    ["Requests", now.requests_s >= 10 ? whole(now.requests_s) : now.requests_s.toFixed(1), "a second"],
    ["Failed", whole(now.failed), `of ${whole(now.requests)}`],
    ["Hit rate", percent(now.delivered), `promised ${percent(now.promised)}`],
    ["TTFT, cold", seconds(ttft("cold").p50), tail(ttft("cold"))],
    ["TTFT, partial", seconds(ttft("partial").p50), tail(ttft("partial"))],
    ["TTFT, warm", seconds(ttft("warm").p50), tail(ttft("warm"))],
    ["In flight", whole(state.in_flight), `${whole(state.queued)} queued`],
    ["Tokens", whole(now.prompt_tokens_s), `in, ${whole(now.generated_tokens_s)} out, a second`],
  ];
  const list = $("tiles");
  rows.forEach((row, i) => {
    let item = list.children[i];
    if (!item) {
      item = make("li");
      for (const name of ["label", "value", "more"]) item.append(make("span", "", { class: name }));
      list.append(item);
    }
    row.forEach((text, j) => set(item.children[j], text));
  });
}

// --- charts

const NS = "http://www.w3.org/2000/svg";
function svg(tag, attributes) {
  const element = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function chart(figure, points, lines, top, format) {
  const names = lines.map((line) => line.name);
  const drawing = svg("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img" });
  for (const y of [0, 50, 100]) drawing.append(svg("line", { class: "grid", x1: 0, x2: 100, y1: y, y2: y }));
  lines.forEach((line, i) => {
    let path = "";
    let pen = false;
    points.forEach((point, x) => {
      const value = point[line.key];
      if (!known(value)) { pen = false; return; }
      const place = `${((100 * x) / Math.max(1, points.length - 1)).toFixed(2)} ${(100 - (100 * value) / top).toFixed(2)}`;
      const alone = !pen && !known((points[x + 1] || {})[line.key]);
      path += `${pen ? "L" : "M"}${place}${alone ? "h0.01" : ""}`;
      pen = true;
    });
    drawing.append(svg("path", { class: `line s${i}`, d: path || "M0 0" }));
  });
  const last = lines.map((line) => {
    const values = points.map((p) => p[line.key]).filter(known);
    return values.length ? format(values[values.length - 1]) : DASH;
  });
  drawing.setAttribute("aria-label", `Line chart. Latest: ${names.map((n, i) => `${n} ${last[i]}`).join(", ")}.`);
  const frame = make("div", null, { class: "chart" });
  const scale = make("div", null, { class: "scale", "aria-hidden": "true" });
  for (const value of [top, top / 2, 0]) scale.append(make("span", format(value)));
  frame.append(scale, drawing);
  const legend = make("ul", null, { class: "legend" });
  names.forEach((name, i) => {
    const item = make("li");
    const key = svg("svg", { viewBox: "0 0 28 10", "aria-hidden": "true" });
    key.append(svg("path", { class: `line s${i}`, d: "M1 5H27" }));
    item.append(key, `${name} ${last[i]}`);
    legend.append(item);
  });
  const times = make("p", null, { class: "times", "aria-hidden": "true" });
  times.append(make("span", "15 min ago"), make("span", "now"));
  figure.replaceChildren(frame, times, legend);
}

const SHARES = ["cold", "partial", "warm"];
function charts(state) {
  chart($("rates"), state.series, [
    { key: "reusable", name: "reusable" },
    { key: "promised", name: "promised" },
    { key: "delivered", name: "delivered" },
  ], 1, percent);
  const highest = Math.max(0.001, ...state.series.flatMap((p) => SHARES.map((share) => p[share])).filter(known));
  const unit = 10 ** Math.floor(Math.log10(highest));
  const top = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= highest * 0.999);
  chart($("ttft"), state.series, SHARES.map((share) => ({ key: share, name: share })), top, seconds);
}

// --- workers

const STATES = { ready: "good", starting: "warn", draining: "warn", "held back": "bad", unhealthy: "bad" };
const EVENTS = { following: "good", mirroring: "good", connecting: "warn", silent: "bad", unsupported: "bad" };
const WORKER = ["State", "In flight", "Waiting tokens", "Cache in use", "Hit rate", "Events"];

function workerRow(worker) {
  const row = make("tr", null, { "data-id": worker.id });
  row.append(make("th", worker.id, { scope: "row" }));
  WORKER.forEach((label, i) => {
    const cell = make("td", null, { "data-label": label });
    if (i === 1 || i === 2) cell.className = "n";
    const inner = make("span");
    if (i === 3 || i === 4) inner.append(make("meter", null, { min: 0, max: 1, "aria-label": label }));
    inner.append(make("span"), make("span", "", { class: "cell-note" }));
    cell.append(inner);
    row.append(cell);
  });
  return row;
}

function fill(row, at, text, note, kind, value) {
  const inner = row.children[at + 1].firstChild;
  const [first, second] = inner.querySelectorAll("span");
  set(first, text);
  set(second, note || "");
  first.className = kind || "";
  const meter = inner.querySelector("meter");
  if (meter) meter.value = known(value) ? value : 0;
}

function workers(state) {
  const body = $("workers");
  const rows = new Map([...body.children].map((row) => [row.dataset.id, row]));
  for (const worker of state.workers) {
    let row = rows.get(worker.id);
    if (!row) { row = workerRow(worker); body.append(row); }
    rows.delete(worker.id);
    fill(row, 0, worker.state, worker.reason, STATES[worker.state]);
    const peers = worker.peer_requests ? `${worker.peer_requests} from peers` : "";
    fill(row, 1, whole(worker.requests) + (known(worker.bound) ? ` of ${worker.bound}` : ""), peers);
    fill(row, 2, whole(worker.waiting_tokens));
    const used = worker.capacity ? Math.min(1, worker.blocks / worker.capacity) : null;
    fill(row, 3, percent(used), `${whole(worker.blocks)} blocks`, "", used);
    fill(row, 4, percent(worker.hit_rate), `${whole(worker.answered)} requests`, "", worker.hit_rate);
    const broken = worker.degraded ? "promises do not come true" : "";
    fill(row, 5, worker.events || "publishes none", broken, worker.degraded ? "bad" : EVENTS[worker.events]);
  }
  rows.forEach((row) => row.remove());
}

// --- decisions

function decisionRow(d) {
  const row = make("tr");
  row.append(make("th", new Date(1000 * d.at).toLocaleTimeString(), { scope: "row" }));
  const outcome = d.outcome === "ok" ? "ok" : `${d.outcome.replaceAll("_", " ")} (${d.status})`;
  const cells = [
    ["Worker", d.worker || "none"], ["Reason", d.reason || DASH, d.why],
    ["Prompt", whole(d.prompt_tokens), "", "n"], ["Matched", whole(d.matched_tokens), "", "n"],
    ["Cached", whole(d.cached_tokens), "", "n"], ["TTFT", seconds(d.ttft_s), "", "n"],
    ["Outcome", outcome, d.tries > 1 ? `${d.tries} tries` : ""],
  ];
  for (const [label, text, note, kind] of cells) {
    const cell = make("td", null, { "data-label": label, class: kind || "" });
    const inner = make("span");
    inner.append(make("span", text, { class: label === "Outcome" && d.status >= 500 ? "bad" : "" }));
    if (note) inner.append(make("span", note, { class: "cell-note" }));
    cell.append(inner);
    row.append(cell);
  }
  const cell = make("td", null, { "data-label": "Why" });
  const button = make("button", "Explain", { type: "button", "aria-label": `Explain decision ${d.number}`, "aria-haspopup": "dialog" });
  button.addEventListener("click", () => explain(d.number));
  cell.append(button);
  row.append(cell);
  return row;
}

function decisions(rows) {
  const body = $("decisions");
  for (const d of rows) body.prepend(decisionRow(d));
  while (body.children.length > SHOWN) {
    // who stands on a row keeps it
    if (body.lastChild.contains(document.activeElement)) break;
    body.lastChild.remove();
  }
  $("no-decisions").hidden = body.children.length > 0;
}

async function explain(number) {
  const answer = await fetch(`ui/decisions/${number}`);
  const body = $("explain-rows");
  body.replaceChildren();
  set($("explain-title"), `Decision ${number}`);
  if (!answer.ok) {
    set($("explain-text"), "It is no longer kept: only the last 200 are.");
  } else {
    const d = await answer.json();
    const shape = `${whole(d.prompt_tokens)} prompt tokens, of which some worker held ${whole(d.reusable_tokens)}; promised ${whole(d.matched_tokens)}, delivered ${whole(d.cached_tokens)}.`;
    const where = d.worker ? `Sent to ${d.worker} because ${d.why || d.reason}.` : "No worker could take it.";
    const more = d.all > d.workers.length ? ` ${d.workers.length} of ${d.all} workers are listed.` : "";
    set($("explain-text"), `${where} ${shape}${d.policy ? ` Policy: ${d.policy}, lowest score wins.` : ""} Deciding took ${seconds(d.routing_s)}.${more}`);
    for (const worker of d.workers) {
      const row = make("tr", null, worker.chosen ? { class: "chosen" } : {});
      row.append(make("th", worker.worker, { scope: "row" }));
      row.append(make("td", whole(worker.matched_tokens), { class: "n" }));
      row.append(make("td", whole(worker.uncached_tokens), { class: "n" }));
      row.append(make("td", known(worker.score) ? worker.score.toFixed(1) : DASH, { class: "n" }));
      row.append(make("td", worker.verdict));
      body.append(row);
    }
  }
  $("explain").showModal();
}

// --- health

function health(state) {
  const rows = [
    ["Index", `${whole(state.index.blocks)} of ${whole(state.index.limit)} blocks, ${whole(state.index.evictions)} given up`],
    ["Promised, not yet confirmed", `${whole(state.index.placed)} blocks`],
    ["Policy", Object.entries(state.policies).map(([m, p]) => (m === "*" ? p : `${m}: ${p}`)).join(", ")],
  ];
  if (!state.redis) rows.push(["Redis", "none: this replica is alone"]);
  else {
    rows.push(["Redis", state.redis.up ? `answers (${state.redis.url})` : `degraded: ${state.redis.reason}`, state.redis.up ? "good" : "bad"]);
    rows.push(["Other replicas", state.peers.length ? `${state.peers.length} heard` : "none heard"]);
  }
  $("health").replaceChildren(...rows.flatMap(([name, text, kind]) => [make("dt", name), make("dd", text, { class: kind || "" })]));
}

// --- live

function badge(text, kind) {
  set($("ready"), text);
  $("ready").className = `badge ${kind}`;
}

function show(state) {
  set($("version"), state.version);
  if (state.not_ready) badge(`not ready: ${state.not_ready}`, "bad");
  else badge("ready", "good");
  tiles(state);
  charts(state);
  workers(state);
  health(state);
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  set($("pause"), paused ? "Go on" : "Pause");
  if (!paused) {
    if (lastState) show(lastState);
    decisions(waiting.splice(0));
  }
});

const source = new EventSource("ui/live");
source.addEventListener("state", (event) => {
  lastState = JSON.parse(event.data);
  if (!paused) show(lastState);
});
source.addEventListener("decisions", (event) => {
  const rows = JSON.parse(event.data);
  if (paused) waiting = waiting.concat(rows).slice(-SHOWN);
  else decisions(rows);
});
source.addEventListener("error", () => badge("no connection to the gateway; trying again", "bad"));
