// The panel of a conversation's settings, and the request fields that they become. An empty field is left out of the
// request, so that the service's default holds.
import { element, fill } from "./dom.js";

const NUMBERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05, preset: "1", hint: "0 always takes the likeliest token" },
  { name: "top_p", label: "Top p", min: 0.01, max: 1, step: 0.01, preset: "1", hint: "share of the probability that is kept" },
  { name: "top_k", label: "Top k", min: 0, step: 1, preset: "off", whole: true },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01, preset: "0" },
  { name: "max_tokens", label: "Most tokens", min: 1, step: 1, preset: "what fits", whole: true },
  { name: "seed", label: "Seed", step: 1, preset: "random", whole: true },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 100, step: 0.05, preset: "1" },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, preset: "0" },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, preset: "0" },
];

const TOOLS_HINT = '[{"type": "function", "function": {"name": "get_weather",\n  "parameters": {"type": "object", "properties": {"town": {"type": "string"}}}}}]';

/** Fills `place` with the fields of `conversation`; `changed` is called after each edit. */
export function panel(place, conversation, changed) {
  const { settings, kind } = conversation;
  const set = (name, value) => {
    if (value === "" || value === null) delete settings[name];
    else settings[name] = value;
    changed();
  };
  const chat = kind === "chat";
  const numbers = NUMBERS.map((field) => number(field, settings, set));
  fill(place,
    chat && area("system", "System prompt", settings, set, { rows: 4, placeholder: "You are a helpful assistant." }),
    element("fieldset", {}, element("legend", {}, "Sampling"), ...numbers.slice(0, 4)),
    element("fieldset", {}, element("legend", {}, "Length and seed"), ...numbers.slice(4, 6),
      area("stop", "Stop strings, one on each line", settings, set, { rows: 2 })),
    element("fieldset", {}, element("legend", {}, "Penalties"), ...numbers.slice(6)),
    chat && element("fieldset", {}, element("legend", {}, "Tools"),
      area("tools", "Tools, as JSON", settings, set, { rows: 6, placeholder: TOOLS_HINT, class: "mono", check: "array" }),
      choice("tool_choice", "Tool choice", ["", "auto", "none", "required"], settings, set)),
    element("fieldset", {}, element("legend", {}, "Shape of the answer"),
      area("schema", "JSON schema", settings, set, { rows: 5, class: "mono", placeholder: '{"type": "object", …}', check: "object" })),
  );
}

function number({ name, label, min, max, step, preset, hint, whole }, settings, set) {
  const id = `set-${name}`;
  const input = element("input", {
    id, type: "number", min, max, step: whole ? 1 : "any", placeholder: preset, inputmode: whole ? "numeric" : "decimal",
    "aria-describedby": hint ? `${id}-hint` : null,
    oninput: () => set(name, input.value === "" || !input.validity.valid ? "" : Number(input.value)),
  });
  input.value = settings[name] ?? "";
  const row = element("div", { class: "setting" }, element("label", { for: id }, label), input);
  if (min !== undefined && max !== undefined && name !== "repetition_penalty") {
    const slider = element("input", {
      type: "range", min, max, step, "aria-label": `${label}, slider`, tabindex: "-1",
      oninput: () => {
        input.value = slider.value;
        set(name, Number(slider.value));
      },
    });
    slider.value = settings[name] ?? (Number(preset) || 0);
    input.addEventListener("input", () => (slider.value = input.value === "" ? Number(preset) || 0 : input.value));
    row.append(slider);
  }
  if (hint) row.append(element("small", { id: `${id}-hint` }, hint));
  return row;
}

function area(name, label, settings, set, { check, class: kind, ...properties }) {
  const id = `set-${name}`;
  const fault = element("small", { class: "fault", role: "alert" });
  const look = () => {
    fault.textContent = check ? jsonFault(input.value, check) : "";
    input.setAttribute("aria-invalid", String(fault.textContent !== ""));
  };
  const input = element("textarea", {
    id, spellcheck: "false", class: kind, ...properties,
    oninput: () => set(name, input.value.trim() === "" ? "" : input.value),
    onchange: look,
  });
  input.value = settings[name] ?? "";
  look();
  return element("div", { class: "setting wide" }, element("label", { for: id }, label), input, fault);
}

function choice(name, label, values, settings, set) {
  const id = `set-${name}`;
  const input = element("select", { id, onchange: () => set(name, input.value) },
    ...values.map((value) => element("option", { value }, value === "" ? "as the service decides" : value)));
  input.value = settings[name] ?? "";
  return element("div", { class: "setting" }, element("label", { for: id }, label), input);
}

function jsonFault(text, kind) {
  if (text.trim() === "") return "";
  try {
    const value = JSON.parse(text);
    if (Array.isArray(value) !== (kind === "array") || typeof value !== "object" || value === null) {
      return `It must be a JSON ${kind}.`;
    }
    return "";
  } catch (error) {
    return error.message;
  }
}

/** The request fields of the settings. Throws an Error with a sentence where one can't be sent. */
export function fields({ settings, kind }) {
  const body = { stream: true, stream_options: { include_usage: true }, timings: true };
  for (const { name } of NUMBERS) if (settings[name] !== undefined) body[name] = settings[name];
  const stops = (settings.stop ?? "").split("\n").filter((line) => line !== "");
  if (stops.length > 0) body.stop = stops;
  if (settings.schema) {
    const fault = jsonFault(settings.schema, "object");
    if (fault) throw new Error(`The JSON schema can’t be sent. ${fault}`);
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(settings.schema) } };
  }
  if (kind === "chat" && settings.tools) {
    const fault = jsonFault(settings.tools, "array");
    if (fault) throw new Error(`The tools can’t be sent. ${fault}`);
    body.tools = JSON.parse(settings.tools);
    if (settings.tool_choice) body.tool_choice = settings.tool_choice;
  }
  return body;
}

/** How many settings differ from the defaults. */
export function changedCount({ settings }) {
  return Object.keys(settings).length;
}
