// The chat: messages as they stand and as they come, with stop, edit, regenerate and results for tool calls.
import { account } from "./answer.js";
import { call, events, Failure, Watch } from "./api.js";
import { announce, button, copyButton, element, fill } from "./dom.js";
import { Markdown } from "./markdown.js";
import { fields } from "./settings.js";

const SUGGESTIONS = ["Who are you?", "Write a short poem about the sea.", "Explain a ring buffer in three sentences."];

export class Chat {
  #place;
  #host;
  #conversation;
  #stream = null;
  #current = null;

  /** `host` is told what happens: `save`, `streaming`, `compose`, `scroll`. */
  constructor(place, host) {
    this.#place = place;
    this.#host = host;
  }

  show(conversation) {
    this.#conversation = conversation;
    this.#place.replaceChildren(...this.#nodes());
    this.#host.scroll(true);
  }

  get streaming() {
    return this.#stream !== null;
  }

  /** The conversation that an answer is being written in. */
  get busy() {
    return this.#current?.conversation ?? null;
  }

  stop() {
    this.#stream?.abort();
  }

  /** Sends what was written. */
  send(text) {
    this.#conversation.messages.push({ role: "user", content: text });
    return this.#answer();
  }

  #nodes() {
    const { messages } = this.#conversation;
    if (messages.length === 0) return [this.#welcome()];
    const nodes = messages.map((message, index) => this.#node(message, index));
    if (this.#current?.conversation === this.#conversation) nodes.push(this.#current.view.made);
    return nodes;
  }

  #welcome() {
    return element("div", { class: "welcome" },
      element("h1", {}, "What shall the model write?"),
      element("p", {}, "The conversation stays in this browser. Enter sends, Shift+Enter begins a new line, Escape stops an answer."),
      element("div", { class: "suggestions" }, ...SUGGESTIONS.map((text) => button(text, () => this.#host.compose(text)))));
  }

  #node(message, index) {
    if (message.role === "user") return this.#userNode(message, index);
    if (message.role === "tool") return toolNode(message);
    const view = new AnswerView();
    view.show(message);
    view.finish(message, this.#actions(message, index));
    this.#appendResults(view, message, index);
    return view.made;
  }

  #userNode(message, index) {
    const text = element("div", { class: "text plain" }, message.content);
    const actions = element("div", { class: "actions" },
      button("Edit", () => this.#edit(made, message, index), { class: "quiet small", "aria-label": "Edit this message" }),
      copyButton(() => message.content, { "aria-label": "Copy this message" }));
    const made = element("article", { class: "message user", "aria-label": "You" }, text, actions);
    return made;
  }

  #edit(made, message, index) {
    if (this.streaming) return;
    const field = element("textarea", { "aria-label": "Your message", rows: "3" });
    field.value = message.content;
    const submit = () => {
      if (field.value.trim() === "") return;
      this.#conversation.messages.splice(index, Infinity, { role: "user", content: field.value });
      this.#answer();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.show(this.#conversation);
      else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        submit();
      }
    });
    made.replaceChildren(field, element("div", { class: "actions" },
      button("Cancel", () => this.show(this.#conversation), { class: "quiet small" }),
      button("Send again", submit, { class: "primary small" })));
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }

  /** Opens the editor of the last message of the user. */
  editLast() {
    const nodes = this.#place.querySelectorAll(".message.user .actions button");
    nodes[nodes.length - 2]?.click();
  }

  #actions(message, index) {
    const last = index === this.#conversation.messages.length - 1;
    return [
      copyButton(() => message.content || JSON.stringify(message.calls ?? []), { "aria-label": "Copy the answer" }),
      last && button("Regenerate", () => this.regenerate(), { class: "quiet small" }),
    ];
  }

  /** Has the last answer written anew. */
  regenerate() {
    const { messages } = this.#conversation;
    if (this.streaming || messages.at(-1)?.role !== "assistant") return;
    messages.pop();
    this.#answer();
  }

  /** Fields for the results of the calls, if the answer ends with some. */
  #appendResults(view, message, index) {
    const open = message.calls?.length > 0 && index === this.#conversation.messages.length - 1;
    if (!open || this.streaming) return;
    const inputs = message.calls.map((one) => ({
      one, field: element("textarea", { rows: "2", class: "mono", "aria-label": `Result of ${one.name}` }),
    }));
    view.made.append(element("form", {
      class: "results",
      onsubmit: (event) => {
        event.preventDefault();
        for (const { one, field } of inputs) {
          this.#conversation.messages.push({ role: "tool", tool_call_id: one.id, name: one.name, content: field.value });
        }
        this.#answer();
      },
    }, ...inputs.map(({ one, field }) => element("label", {}, `Result of ${one.name}`, field)),
    element("button", { type: "submit", class: "primary small" }, "Send the results")));
  }

  #request() {
    const { messages, settings } = this.#conversation;
    const sent = settings.system ? [{ role: "system", content: settings.system }] : [];
    for (const message of messages) {
      if (message.role === "assistant") {
        if (!message.content && !message.calls?.length) continue;
        const calls = message.calls?.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
        sent.push({ role: "assistant", content: message.content || (calls?.length ? null : ""), ...(calls?.length && { tool_calls: calls }) });
      } else sent.push(message);
    }
    return { messages: sent, ...fields(this.#conversation) };
  }

  async #answer() {
    const conversation = this.#conversation;
    const message = { role: "assistant", content: "" };
    const view = new AnswerView();
    this.#current = { conversation, view };
    this.#stream = new AbortController();
    this.#place.replaceChildren(...this.#nodes());
    view.begin();
    this.#host.streaming(true);
    this.#host.save(conversation);
    this.#host.scroll(true);
    const watch = new Watch((text) => view.notice(text));
    try {
      const body = this.#request();
      const response = await call("/v1/chat/completions", { body, signal: this.#stream.signal });
      for await (const event of events(response)) {
        watch.heard();
        take(message, event);
        view.later(message, () => this.#host.scroll(false));
      }
    } catch (error) {
      if (error.name === "AbortError") message.stopped = true;
      else message.error = error instanceof Failure && error.retryAfterS ? `${error.message} Try again in ${error.retryAfterS} s.` : error.message;
    }
    watch.end();
    this.#stream = null;
    this.#current = null;
    conversation.messages.push(message);
    this.#host.save(conversation);
    this.#host.streaming(false);
    announce(message.error ?? (message.stopped ? "Stopped." : "The answer is complete."));
    if (conversation !== this.#conversation) return;
    const index = conversation.messages.length - 1;
    view.show(message);
    view.finish(message, this.#actions(message, index));
    this.#appendResults(view, message, index);
    this.#host.scroll(false);
  }
}

/** Adds a chunk to a message. */
function take(message, event) {
  if (event.timings) message.timings = event.timings;
  const choice = event.choices?.[0];
  if (!choice) return;
  const { delta } = choice;
  if (delta.content) message.content += delta.content;
  const reasoning = delta.reasoning_content ?? delta.reasoning;
  if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
  for (const part of delta.tool_calls ?? []) {
    message.calls ??= [];
    const one = (message.calls[part.index] ??= { id: "", name: "", arguments: "" });
    if (part.id) one.id = part.id;
    one.name += part.function?.name ?? "";
    one.arguments += part.function?.arguments ?? "";
  }
  if (choice.finish_reason) message.finish = choice.finish_reason;
}

function toolNode(message) {
  return element("article", { class: "message tool", "aria-label": `Result of ${message.name}` },
    element("span", { class: "role" }, `Result of ${message.name}`), element("pre", {}, message.content));
}

/** One answer on the page. */
class AnswerView {
  #reasoning = element("details", { class: "reasoning", hidden: true }, element("summary", {}, "Reasoning"));
  #reasoningText = element("div", { class: "text" });
  #text = element("div", { class: "text" });
  #calls = element("div", { class: "calls" });
  #notice = element("p", { class: "notice", role: "status", hidden: true });
  #end = element("div", { class: "end" });
  #markdown = new Markdown(this.#text);
  #thoughts = new Markdown(this.#reasoningText);
  #frame = 0;

  constructor() {
    this.#reasoning.append(this.#reasoningText);
    this.made = element("article", { class: "message assistant", "aria-label": "The model" },
      this.#reasoning, this.#text, this.#calls, this.#notice, this.#end);
  }

  begin() {
    this.made.setAttribute("aria-busy", "true");
    this.made.classList.add("waiting");
  }

  /** Shows the message as it stands, at most once in a frame. */
  later(message, then) {
    if (this.#frame) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      this.show(message);
      then();
    });
  }

  show(message) {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    const thinks = Boolean(message.reasoning);
    this.made.classList.toggle("waiting", this.made.hasAttribute("aria-busy") && !message.content && !thinks);
    this.#reasoning.hidden = !thinks;
    if (thinks) this.#thoughts.show(message.reasoning);
    this.#markdown.show(message.content);
    this.#calls.replaceChildren(...(message.calls ?? []).filter(Boolean).map((one) =>
      element("figure", { class: "code call" },
        element("figcaption", {}, element("span", {}, "Call of ", element("b", {}, one.name))),
        element("pre", { tabindex: "0" }, element("code", {}, pretty(one.arguments))))));
  }

  notice(text) {
    this.#notice.hidden = !text;
    this.#notice.textContent = text ?? "";
  }

  finish(message, actions) {
    this.made.removeAttribute("aria-busy");
    this.made.classList.remove("waiting");
    const why = message.error ? element("p", { class: "error", role: "alert" }, message.error)
      : message.stopped ? element("p", { class: "note" }, "Stopped.")
        : message.finish === "length" ? element("p", { class: "note" }, "Cut off by the limit of tokens.") : null;
    fill(this.#end, why, message.timings && account(message.timings), element("div", { class: "actions" }, ...actions));
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
