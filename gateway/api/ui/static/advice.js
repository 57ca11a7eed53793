"use strict";

// The doctor and the plan. Helpers are those of page.js, which is read before this.

async function answerOf(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    return { refusal: "the gateway does not answer", param: null };
  }
  const said = await answer.json().catch(() => ({}));
  if (answer.ok) return { said };
  const error = said.error || {};
  return { refusal: error.message || `refused with status ${answer.status}`, param: error.param };
}

function options(select, names) {
  for (const name of names) select.append(make("option", name, { value: name }));
}

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = value;
  let at = 0;
  while (size >= 1024 && at < units.length - 1) { size /= 1024; at += 1; }
  return at ? `${Number(size.toPrecision(4)).toLocaleString("en")} ${units[at]}` : `${value} B`;
}

// --- doctor

const SEVERITIES = { critical: "bad", warning: "warn", note: "" };
let examining = false;

function evidence(one) {
  const value = typeof one.value === "number" ? one.value.toLocaleString("en", { maximumSignificantDigits: 4 }) : one.value;
  return make("li", `${one.name}: ${value}${one.unit ? ` ${one.unit}` : ""}`);
}

function findingItem(found) {
  const item = make("li", null, { "data-finding": found.id });
  const title = make("h3");
  title.append(make("span", found.severity, { class: `badge ${SEVERITIES[found.severity]}` }), `${found.id}: ${found.subject}`);
  const figures = make("ul", null, { "aria-label": "Evidence" });
  figures.append(...found.evidence.map(evidence));
  const remedies = make("ul", null, { "aria-label": "Remedy" });
  remedies.append(...found.remedy.map((text) => make("li", text)));
  const runbook = make("p", "Runbook: ", { class: "note" });
  runbook.append(make("code", found.runbook));
  item.append(
    title, make("p", found.symptom), figures,
    make("p", `Cause: ${found.cause} (confidence ${percent(found.confidence)})`),
    make("p", "Remedy:"), remedies, runbook,
  );
  return item;
}

function counted(number, word) {
  return `${number} ${word}${number === 1 ? "" : "s"}`;
}

async function examine(window) {
  const bar = $("doctor-progress");
  const began = performance.now();
  bar.hidden = false;
  bar.max = window;
  bar.value = 0;
  const timer = setInterval(() => {
    const watched = (performance.now() - began) / 1000;
    if (watched < window) bar.value = watched;
    else bar.removeAttribute("value"); // it judges what it saw
  }, 200);
  set($("doctor-status"), "Watching the fleet …");
  $("findings").replaceChildren();
  const { said, refusal } = await answerOf(`admin/doctor?window=${window}`, { method: "POST" });
  clearInterval(timer);
  bar.hidden = true;
  if (!said) { set($("doctor-status"), `No examination: ${refusal}.`); return; }
  const looked = `${counted(said.engines.length, "engine")}, ${said.window_s.toFixed(0)} s, ${said.rules} rules`;
  const verdict = said.findings.length ? counted(said.findings.length, "finding") : "Nothing ails this fleet";
  set($("doctor-status"), `${verdict} (${looked}).`);
  $("findings").replaceChildren(...said.findings.map(findingItem));
}

$("doctor-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (examining) return;
  const button = event.target.querySelector("button");
  examining = true;
  button.setAttribute("aria-disabled", "true"); // disabled, it would lose the keyboard's focus
  await examine(Number(event.target.elements.window.value));
  button.removeAttribute("aria-disabled");
  examining = false;
});

// --- plan

const NUMBERS = ["gpus", "tensor_parallel", "concurrency", "max_model_len"];
let asked = 0;

function wanted(form) {
  const body = {};
  for (const [name, text] of new FormData(form)) {
    if (text.trim()) body[name] = NUMBERS.includes(name) ? Number(text) : text.trim();
  }
  return body;
}

function showPlan(plan) {
  const parallel = plan.gpu.tensor_parallel > 1 ? `, tensor parallel ${plan.gpu.tensor_parallel}` : "";
  const rows = [
    ["K/V a token", `${bytes(plan.kv_bytes_per_token)} (${whole(plan.kv_bytes_per_token)} bytes), ${plan.kv_precision}`],
    ["K/V a block", `${bytes(plan.kv_bytes_per_block)} (${plan.block_size} tokens)`],
    ["K/V memory", `${bytes(plan.memory.kv)} on each GPU, beside ${bytes(plan.memory.weights)} of weights`],
    ["Blocks", `${whole(plan.kv_blocks)} in a replica: ${whole(plan.kv_tokens)} tokens`],
    ["Max model len", `${whole(plan.max_model_len)} tokens; ${plan.concurrency_at_max_model_len.toFixed(1)} of that length at once`],
    ["Sequences at once", whole(plan.max_num_seqs)],
    ["TTFT", `${seconds(plan.latency.ttft_cold)} cold, ${seconds(plan.latency.ttft_warm)} warm (estimates)`],
    ["Between tokens", `${seconds(plan.latency.itl)} alone, ${seconds(plan.latency.itl_loaded)} with ${whole(plan.latency.loaded_sequences)} sequences (estimates)`],
  ];
  $("plan-figures").replaceChildren(...rows.flatMap(([name, text]) => [make("dt", name), make("dd", text)]));
  $("plan-warnings").replaceChildren(...plan.warnings.map((text) => make("li", text)));
  set($("plan-vllm"), plan.flags.vllm.join("\n"));
  set($("plan-sglang"), plan.flags.sglang.join("\n"));
  set($("plan-status"), `${plan.model.name} (${plan.model.attention}) on ${counted(plan.gpu.gpus, "GPU")} ${plan.gpu.name}${parallel}.`);
}

$("plan-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const number = ++asked;
  const { said, refusal, param } = await answerOf("admin/plan", { method: "POST", body: JSON.stringify(wanted(form)) });
  if (number !== asked) return; // a later question has been put
  for (const field of form.elements) field.removeAttribute("aria-invalid");
  $("plan-result").hidden = !said;
  set($("plan-refusal"), said ? "" : refusal);
  if (said) showPlan(said);
  else {
    set($("plan-status"), "");
    const field = param && form.elements.namedItem(param);
    if (field) { field.setAttribute("aria-invalid", "true"); field.focus(); }
  }
});

async function names() {
  const { said, refusal } = await answerOf("admin/plan");
  if (!said) { set($("plan-refusal"), refusal); return; }
  const fields = $("plan-form").elements;
  options($("plan-models"), said.models);
  options(fields.gpu, said.gpus);
  options(fields.weights, said.weights);
  options(fields.kv, said.kv);
  options(fields.scenario, said.scenarios);
}

names();
