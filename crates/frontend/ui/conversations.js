// Conversations, kept in this browser: each under a key of its own, so that two tabs don't overwrite each other's.

const PREFIX = "pinion.conversation.";
const COUNT_MAX = 200;
const TITLE_MAX = 60;

/** A new one. `kind` is "chat" or "completion". */
export function fresh(kind, settings = {}) {
  const id = `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 8)}`;
  return { id, kind, title: "", updated: Date.now(), settings: { ...settings }, messages: [], text: "", accounts: [] };
}

/** All of them, the latest first. */
export function all() {
  const found = [];
  for (let index = 0; index < localStorage.length; index += 1) {
    const key = localStorage.key(index);
    const one = key.startsWith(PREFIX) ? read(key) : null;
    if (one) found.push(one);
  }
  return found.sort((a, b) => b.updated - a.updated);
}

/** The one with this id. */
export function load(id) {
  return read(PREFIX + id);
}

function read(key) {
  try {
    const one = JSON.parse(localStorage.getItem(key));
    const sound = one?.id && Array.isArray(one.messages) && ["chat", "completion"].includes(one.kind);
    return sound ? { settings: {}, text: "", accounts: [], ...one } : null;
  } catch {
    return null;
  }
}

/** Keeps one; the oldest give way where the browser has no room. Whether it is kept. */
export function save(one) {
  one.updated = Date.now();
  one.title = title(one);
  const others = all().filter((other) => other.id !== one.id);
  while (others.length >= COUNT_MAX) remove(others.pop().id);
  for (;;) {
    try {
      localStorage.setItem(PREFIX + one.id, JSON.stringify(one));
      return true;
    } catch {
      if (others.length === 0) return false;
      remove(others.pop().id);
    }
  }
}

/** Forgets one. */
export function remove(id) {
  localStorage.removeItem(PREFIX + id);
}

/** Whether something was written in it. */
export function isEmpty(one) {
  return one.messages.length === 0 && one.text.trim() === "";
}

function title(one) {
  const said = one.kind === "chat" ? one.messages.find((message) => message.role === "user")?.content : one.text;
  const line = (said ?? "").trim().replaceAll(/\s+/g, " ");
  return line.length > TITLE_MAX ? `${line.slice(0, TITLE_MAX - 1)}…` : line;
}

/** Calls back when another tab changed something. */
export function onChangeElsewhere(callback) {
  addEventListener("storage", (event) => (event.key === null || event.key.startsWith(PREFIX)) && callback());
}
