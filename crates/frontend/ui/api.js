// Calls the service: JSON, streams of events, and the key where one is asked for. The key stays in this tab's session.
import { button, element } from "./dom.js";

const KEY = "pinion.key";
/** Where the service is: a proxy may serve it below a path. */
export const BASE = new URL("..", import.meta.url);
const SILENCE_MS = 700;

/** What the service refused, or that it could not be reached. */
export class Failure extends Error {
  constructor(message, status = 0, retryAfterS = null) {
    super(message);
    this.status = status;
    this.retryAfterS = retryAfterS;
  }
}

function key() {
  return sessionStorage.getItem(KEY);
}

function headers(body) {
  const fields = {};
  if (body !== undefined) fields["content-type"] = "application/json";
  if (key()) fields.authorization = `Bearer ${key()}`;
  return fields;
}

async function failure(response) {
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // A proxy's page says nothing better.
  }
  const after = Number(response.headers.get("retry-after"));
  return new Failure(message, response.status, after > 0 ? after : null);
}

/** One request. Asks for the key once where the service wants one, unless `quiet`. Any status but 2xx is a Failure. */
export async function call(path, { method, body, signal, quiet = false } = {}) {
  const send = () => fetch(new URL(path.slice(1), BASE), {
    method: method ?? (body === undefined ? "GET" : "POST"),
    headers: headers(body),
    body: body === undefined || typeof body === "string" ? body : JSON.stringify(body),
    signal,
    cache: "no-store",
  });
  let response;
  try {
    response = await send();
    if (response.status === 401 && !quiet && (await askForKey(Boolean(key())))) response = await send();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The service does not answer. Is it still running?");
  }
  if (!response.ok) throw await failure(response);
  return response;
}

/** The JSON that a path gives. */
export async function json(path, options) {
  return (await call(path, options)).json();
}

/** The data of each server-sent event, up to `[DONE]`. Throws where a stream breaks off or has an error in it. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        if (!part.startsWith("data: ")) continue;
        const data = part.slice(6);
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new Failure(event.error.message);
        yield event;
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Failure) throw error;
    throw new Failure("The connection broke off.");
  }
  throw new Failure("The answer broke off before its end.");
}

/** Watches a stream: when nothing comes for a while, `tell` gets what the service says about it, and null when it goes on. */
export class Watch {
  #timer;
  #tell;
  #told = false;

  constructor(tell) {
    this.#tell = tell;
    this.heard();
  }

  heard() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#look(), SILENCE_MS);
    if (this.#told) this.#tell(null);
    this.#told = false;
  }

  end() {
    clearTimeout(this.#timer);
    if (this.#told) this.#tell(null);
  }

  async #look() {
    const timer = this.#timer;
    const stats = await json("/stats", { quiet: true }).catch(() => null);
    if (timer !== this.#timer) return;
    const down = stats?.roles.find((role) => !["ready", "draining"].includes(role.phase));
    const reason = down
      ? `${down.role} is being replaced. The answer goes on when its successor serves.`
      : stats?.requests.waiting > 0 ? `${stats.requests.waiting} requests wait for the engine.` : null;
    if (reason) {
      this.#told = true;
      this.#tell(reason);
    }
    this.#timer = setTimeout(() => this.#look(), SILENCE_MS);
  }
}

let asking = null;

/** Asks the person for the key. Whether there is a new one. */
export function askForKey(wrong = false) {
  asking ??= new Promise((resolve) => {
    const field = element("input", {
      id: "key", type: "password", autocomplete: "current-password", required: true, spellcheck: "false",
    });
    let entered = false;
    const dialog = element("dialog", { class: "key", "aria-labelledby": "key-title" },
      element("form", {
        onsubmit: (event) => {
          event.preventDefault();
          sessionStorage.setItem(KEY, field.value.trim());
          entered = true;
          dialog.close();
        },
      },
        element("h2", { id: "key-title" }, "This service asks for a key"),
        element("p", {}, wrong
          ? "The service refused the key. Enter another one."
          : "The key stays in this tab and is forgotten when you close it."),
        element("label", { for: "key" }, "Key"),
        field,
        element("div", { class: "actions" },
          button("Cancel", () => dialog.close(), { class: "quiet" }),
          element("button", { type: "submit", class: "primary" }, "Use this key")),
      ));
    dialog.addEventListener("close", () => {
      dialog.remove();
      asking = null;
      resolve(entered);
    });
    document.body.append(dialog);
    dialog.showModal();
    field.focus();
  });
  return asking;
}
