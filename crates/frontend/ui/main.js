// The page: its two tabs, the list of conversations, the settings and the field to write in.
import { json } from "./api.js";
import { Chat } from "./chat.js";
import { Completion } from "./completion.js";
import * as conversations from "./conversations.js";
import { announce, button, element, fill } from "./dom.js";
import { Live } from "./live.js";
import { pooled } from "./pooled.js";
import { changedCount, panel } from "./settings.js";

const at = (id) => document.getElementById(id);
const narrow = matchMedia("(max-width: 900px)");

let conversation;
let saving = 0;
/** What is shown beside the live figures: a model that pools has no chats. */
let home = "chat";

const host = {
  save(one = conversation) {
    clearTimeout(saving);
    if (one !== conversation) return keep(one);
    saving = setTimeout(() => keep(one), 200);
  },
  streaming(on) {
    at("send").hidden = on;
    at("stop").hidden = !on;
    document.body.classList.toggle("streaming", on);
    // A person who has gone to another control stays there.
    const free = document.activeElement === document.body;
    if (!on && free && conversation.kind === "chat" && !at("chat").hidden) at("prompt").focus({ preventScroll: true });
  },
  compose(text) {
    at("prompt").value = text;
    grow();
    at("prompt").focus();
  },
  /** Keeps the end in view if it is, or always. */
  scroll(always) {
    const place = at("scroll");
    if (always || place.scrollHeight - place.scrollTop - place.clientHeight < 160) place.scrollTop = place.scrollHeight;
  },
};

const chat = new Chat(at("messages"), host);
const completion = new Completion(at("messages"), host);
const live = new Live(at("live"));
const view = () => (conversation.kind === "chat" ? chat : completion);

function keep(one) {
  if (one.forgotten || conversations.isEmpty(one)) return;
  if (!conversations.save(one)) announce("This browser has no room for the conversation.");
  list();
}

function list() {
  const kept = conversations.all();
  fill(at("list"), ...kept.map((one) => element("li", { class: one.id === conversation.id ? "current" : null },
    button(one.title || "Untitled", () => open(one.id), {
      class: "open", "aria-current": one.id === conversation.id ? "true" : null,
      title: one.kind === "chat" ? "Chat" : "Completion",
    }),
    button("×", () => forget(one), { class: "quiet forget", "aria-label": `Delete ${one.title || "this conversation"}` }))));
  at("none").hidden = kept.length > 0;
}

function forget(one) {
  if (!confirm(`Delete “${one.title || "Untitled"}”?`)) return;
  clearTimeout(saving);
  if (chat.busy?.id === one.id) {
    chat.busy.forgotten = true;
    chat.stop();
  }
  conversations.remove(one.id);
  if (one.id === conversation.id) begin(one.kind);
  else list();
}

function begin(kind) {
  show(conversations.fresh(kind, kind === conversation?.kind ? conversation.settings : {}));
  if (kind === "chat") at("prompt").focus();
  else completion.focus();
}

function open(id) {
  const one = chat.busy?.id === id ? chat.busy : id === conversation.id ? conversation : conversations.load(id);
  if (one) show(one);
}

function show(one) {
  if (completion.streaming) completion.stop();
  conversation = one;
  document.body.classList.toggle("completing", one.kind === "completion");
  view().show(one);
  panel(at("settings-fields"), one, () => {
    mark();
    host.save();
  });
  mark();
  list();
  side(false);
}

function mark() {
  const count = changedCount(conversation);
  at("settings-count").textContent = count > 0 ? String(count) : "";
}

function side(on) {
  document.body.classList.toggle("side-open", on);
  at("side-button").setAttribute("aria-expanded", String(on));
  if (on) at("new-chat").focus();
}

function settings(on) {
  at("settings").hidden = !on;
  at("settings-button").setAttribute("aria-expanded", String(on));
  if (on) at("settings").querySelector("textarea, input")?.focus();
  else at("settings-button").focus();
}

function grow() {
  const field = at("prompt");
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight + 2, 240)}px`;
}

function submit() {
  const field = at("prompt");
  const text = field.value;
  if (text.trim() === "" || chat.streaming || completion.streaming) return;
  field.value = "";
  grow();
  chat.send(text);
}

function tab() {
  const shown = location.hash === "#live" ? "live" : home;
  for (const name of ["chat", "live", "pooled"]) at(name).hidden = name !== shown;
  for (const [name, current] of [["chat", shown !== "live"], ["live", shown === "live"]]) {
    if (current) at(`${name}-tab`).setAttribute("aria-current", "page");
    else at(`${name}-tab`).removeAttribute("aria-current");
  }
  document.body.classList.toggle("watching", shown === "live");
  document.title = shown === "live" ? "Live · Pinion" : "Pinion";
  if (shown === "live") live.start();
  else live.stop();
}

function keys(event) {
  if (event.key !== "Escape" || event.defaultPrevented || document.querySelector("dialog[open]")) return;
  if (chat.streaming) chat.stop();
  else if (completion.streaming) completion.stop();
  else if (document.body.classList.contains("side-open")) {
    side(false);
    at("side-button").focus();
  } else if (!at("settings").hidden && narrow.matches) settings(false);
}

function wire() {
  at("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  at("prompt").addEventListener("input", grow);
  at("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    } else if (event.key === "ArrowUp" && at("prompt").value === "" && !chat.streaming) {
      event.preventDefault();
      chat.editLast();
    }
  });
  at("stop").addEventListener("click", () => (chat.streaming ? chat : completion).stop());
  at("new-chat").addEventListener("click", () => begin("chat"));
  at("new-completion").addEventListener("click", () => begin("completion"));
  at("side-button").addEventListener("click", () => side(!document.body.classList.contains("side-open")));
  at("shade").addEventListener("click", () => side(false));
  at("settings-button").addEventListener("click", () => settings(at("settings").hidden));
  at("settings-close").addEventListener("click", () => settings(false));
  document.addEventListener("keydown", keys);
  addEventListener("hashchange", tab);
  addEventListener("pagehide", () => conversation && keep(conversation));
  conversations.onChangeElsewhere(list);
}

function makesVectors(model) {
  home = "pooled";
  at("chat-tab").textContent = "Vectors";
  at("side-button").hidden = true;
  at("skip").href = "#query";
  pooled(at("pooled"), model);
  tab();
}

/** Where there is no key, `/v1/models` says what the model can hold; the name needs none. */
async function name() {
  try {
    const { model, version, pooling } = await json("/version", { quiet: true });
    at("model").textContent = model;
    at("model").title = `Pinion ${version}`;
    at("prompt").placeholder = `Write to ${model}`;
    if (pooling) makesVectors(model);
  } catch (error) {
    at("model").textContent = error.message;
  }
}

wire();
show(conversations.all()[0] ?? conversations.fresh("chat"));
tab();
name();
if (!narrow.matches && !at("chat").hidden) at("prompt").focus();
