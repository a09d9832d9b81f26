// Shows one answer's account: its bar of queue, prefill and decode, its tokens per second, and every stage on demand.
import { counted, duration, element } from "./dom.js";

const GROUPS = [
  ["queue", "Queue", ["admission", "tokenizer_queue", "tokenize", "engine_inbox", "queue"]],
  ["prefill", "Prefill", ["prefill"]],
  ["decode", "Decode", ["decode"]],
  ["finish", "Finish", ["detokenize", "write"]],
];

const STAGES = {
  admission: "Admission", tokenizer_queue: "Wait for the tokenizer", tokenize: "Tokenize", engine_inbox: "Engine’s inbox",
  queue: "Wait for a place in a step", prefill: "Prefill", decode: "Decode", detokenize: "Detokenize", write: "Write",
};

/** The bar: one part for each group, as wide as its time. */
export function bar(timings) {
  const parts = GROUPS.map(([kind, name, stages]) => {
    const ms = stages.reduce((sum, stage) => sum + (timings.stages_ms[stage] ?? 0), 0);
    return { kind, name, ms };
  });
  const label = parts.map(({ name, ms }) => `${name} ${duration(ms)}`).join(", ");
  const made = element("div", { class: "bar", role: "img", "aria-label": label });
  for (const { kind, name, ms } of parts) {
    const part = element("span", { class: `part ${kind}`, title: `${name} ${duration(ms)}` });
    part.style.flexGrow = String(ms);
    made.append(part);
  }
  return { made, parts };
}

function legend(parts) {
  return element("span", { class: "legend" }, ...parts.filter(({ ms }) => ms >= 0.05).map(({ kind, name, ms }) =>
    element("span", {}, element("i", { class: `key ${kind}` }), `${name} ${duration(ms)}`)));
}

/** One line: tokens, rate, first token, whole time. */
export function summary(timings) {
  const said = [counted(timings.predicted_n, "token")];
  if (timings.predicted_per_second > 0) said.push(`${timings.predicted_per_second.toFixed(1)} tokens/s`);
  if (timings.ttft_ms !== null) said.push(`first after ${duration(timings.ttft_ms)}`);
  said.push(`${duration(timings.e2e_ms)} in all`);
  return said.join(" · ");
}

/** The account of an answer. */
export function account(timings) {
  const { made, parts } = bar(timings);
  const facts = [["Prompt", counted(timings.prompt_n + timings.cache_n, "token")]];
  if (timings.cache_n > 0) facts.push(["From the prefix cache", counted(timings.cache_n, "token")]);
  facts.push(...Object.entries(STAGES).map(([stage, name]) => [name, duration(timings.stages_ms[stage] ?? 0)]));
  facts.push(["Steps", `${timings.batch.steps}, ${timings.batch.rows_mean.toFixed(1)} sequences in each on average`]);
  if (timings.preemptions > 0) facts.push(["Preempted", `${timings.preemptions} times`]);
  const resumed = timings.resumptions > 0 && element("span", { class: "badge" },
    `went on after ${timings.resumptions === 1 ? "a role" : `${timings.resumptions} roles`} died`);
  return element("div", { class: "account" }, made,
    element("details", {},
      element("summary", {}, element("span", {}, summary(timings)), resumed, legend(parts)),
      element("dl", {}, ...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))))));
}
