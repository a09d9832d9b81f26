// The API's page: its own address in the commands, buttons to copy and forms to try them.
import { askForKey, BASE, call, Failure } from "./api.js";
import { button, copyButton, duration, element, fill } from "./dom.js";

const WRITTEN = "http://127.0.0.1:8000";
const SHOWN_MAX = 200_000;

for (const code of document.querySelectorAll("[data-origin]")) {
  code.textContent = code.textContent.replaceAll(WRITTEN, BASE.href.replace(/\/$/, ""));
}

document.getElementById("key-button")?.addEventListener("click", () => askForKey());

for (const command of document.querySelectorAll(".command")) {
  const code = command.querySelector("code");
  const tools = element("div", { class: "tools" }, copyButton(() => code.textContent));
  const operation = command.closest(".operation");
  if (operation) {
    const open = button("Try it", () => attempt(open, command, operation), { class: "quiet small" });
    tools.append(open);
  }
  command.append(tools);
}

/** A form below the command that sends it. */
function attempt(open, command, operation) {
  open.disabled = true;
  const { method, path } = operation.dataset;
  const body = command.querySelector("code").textContent.match(/ -d '(.*)'$/s)?.[1];
  const place = path.match(/\{(\w+)\}/)?.[1];
  const parameter = place && element("input", { "aria-label": place, placeholder: place, required: true });
  const field = body !== undefined && element("textarea", { rows: String(Math.min(12, body.split("\n").length + 2)), class: "mono", spellcheck: "false", "aria-label": "Body" });
  if (field) field.value = body;
  const said = element("p", { class: "note", role: "status" });
  const output = element("pre", { tabindex: "0", hidden: true, "aria-label": "Answer" });
  const send = element("button", { type: "submit", class: "primary small" }, "Send");
  const stop = button("Stop", () => running?.abort(), { class: "quiet small", hidden: true });
  let running = null;
  const form = element("form", {
    class: "attempt",
    onsubmit: async (event) => {
      event.preventDefault();
      running = new AbortController();
      send.hidden = true;
      stop.hidden = false;
      const target = place ? path.replace(`{${place}}`, encodeURIComponent(parameter.value)) : path;
      await run({ target, method, body: field ? field.value : undefined, signal: running.signal, said, output });
      running = null;
      send.hidden = false;
      stop.hidden = true;
    },
  });
  fill(form, parameter, field, element("div", { class: "actions" }, send, stop), said, output);
  command.after(form);
  (parameter || field || send).focus();
}

async function run({ target, method, body, signal, said, output }) {
  const began = performance.now();
  const took = () => duration(performance.now() - began);
  output.hidden = true;
  output.textContent = "";
  said.textContent = "Sent.";
  try {
    const response = await call(target, { method, body, signal });
    said.textContent = `${response.status} ${response.statusText} after ${took()}`;
    output.hidden = false;
    await pour(response, output);
    said.textContent = `${response.status} ${response.statusText}, ${took()} in all`;
  } catch (error) {
    if (error.name === "AbortError") said.textContent = `Stopped after ${took()}.`;
    else said.textContent = error instanceof Failure && error.status ? `${error.status}: ${error.message}` : error.message;
  }
}

async function pour(response, output) {
  if (response.headers.get("content-type")?.startsWith("application/json")) {
    const text = await response.text();
    output.textContent = text.length < SHOWN_MAX ? JSON.stringify(JSON.parse(text), null, 2) : `${text.slice(0, SHOWN_MAX)}…`;
    return;
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let length = 0; length < SHOWN_MAX;) {
    const { value, done } = await reader.read();
    if (done) return;
    output.append(value);
    length += value.length;
    output.scrollTop = output.scrollHeight;
  }
  await reader.cancel();
  output.append("…");
}

const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    for (const link of links.values()) link.removeAttribute("aria-current");
    links.get(target.id)?.setAttribute("aria-current", "true");
  }
}, { rootMargin: "-10% 0px -80% 0px" });
for (const target of document.querySelectorAll(".operation")) watcher.observe(target);
