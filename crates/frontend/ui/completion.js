// The completion: one text that the model goes on with. What it wrote last can be taken back and written anew.
import { account } from "./answer.js";
import { call, events, Watch } from "./api.js";
import { announce, button, element, fill } from "./dom.js";
import { fields } from "./settings.js";

const TOKENS_PRESET = 128;

export class Completion {
  #place;
  #host;
  #conversation;
  #stream = null;
  #field = element("textarea", { id: "document", class: "document", "aria-label": "Text", placeholder: "Write the beginning of a text. The model goes on with it.", spellcheck: "false" });
  #end = element("div", { class: "end" });
  #notice = element("p", { class: "notice", role: "status", hidden: true });

  constructor(place, host) {
    this.#place = place;
    this.#host = host;
    this.#field.addEventListener("input", () => {
      this.#conversation.text = this.#field.value;
      delete this.#conversation.before;
      this.#host.save();
      this.#actions();
    });
    this.#field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.send();
    });
  }

  show(conversation) {
    this.#conversation = conversation;
    this.#field.value = conversation.text;
    this.#field.readOnly = false;
    this.#place.replaceChildren(element("div", { class: "completion" }, this.#field, this.#notice, this.#end));
    this.#actions();
  }

  get streaming() {
    return this.#stream !== null;
  }

  focus() {
    this.#field.focus();
  }

  stop() {
    this.#stream?.abort();
  }

  #actions(error) {
    const { timings, before } = this.#conversation;
    fill(this.#end,
      error && element("p", { class: "error", role: "alert" }, error),
      timings && account(timings),
      element("div", { class: "actions" },
        button("Continue", () => this.send(), { class: "primary", title: "Ctrl+Enter" }),
        before !== undefined && button("Write anew", () => this.#anew(), { class: "quiet" }),
        before !== undefined && button("Take back", () => this.#back(), { class: "quiet" })));
  }

  #back() {
    this.#conversation.text = this.#conversation.before;
    delete this.#conversation.before;
    delete this.#conversation.timings;
    this.#host.save();
    this.show(this.#conversation);
    this.#field.focus();
  }

  #anew() {
    this.#back();
    return this.send();
  }

  async send() {
    const conversation = this.#conversation;
    if (this.streaming || conversation.text === "") return;
    conversation.before = conversation.text;
    delete conversation.timings;
    this.#stream = new AbortController();
    this.#field.readOnly = true;
    this.#end.replaceChildren();
    this.#host.streaming(true);
    const watch = new Watch((text) => {
      this.#notice.hidden = !text;
      this.#notice.textContent = text ?? "";
    });
    let error = null;
    try {
      const body = { prompt: conversation.before, max_tokens: TOKENS_PRESET, ...fields(conversation) };
      const response = await call("/v1/completions", { body, signal: this.#stream.signal });
      for await (const event of events(response)) {
        watch.heard();
        if (event.timings) conversation.timings = event.timings;
        const text = event.choices?.[0]?.text;
        if (text) this.#append(conversation, text);
      }
    } catch (failed) {
      if (failed.name !== "AbortError") error = failed.message;
    }
    watch.end();
    this.#stream = null;
    this.#host.save(conversation);
    this.#host.streaming(false);
    announce(error ?? "The text is complete.");
    if (conversation !== this.#conversation) return;
    this.#field.readOnly = false;
    this.#actions(error);
  }

  #append(conversation, text) {
    conversation.text += text;
    if (conversation !== this.#conversation) return;
    const field = this.#field;
    const low = field.scrollHeight - field.scrollTop - field.clientHeight < 40;
    field.value = conversation.text;
    if (low) field.scrollTop = field.scrollHeight;
  }
}
