// Makes elements. Text goes in as text nodes only, so nothing that a model writes can become markup.

/** An element with properties and children; strings become text. `on*` properties are listeners, `data` is its dataset. */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "data") Object.assign(made.dataset, value);
    else if (key === "class") made.className = value;
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Gives a place new children, without those that are none. */
export function fill(place, ...children) {
  place.replaceChildren(...children.filter((child) => child !== null && child !== undefined && child !== false));
}

/** A button with text. */
export function button(text, onclick, properties = {}) {
  return element("button", { type: "button", onclick, ...properties }, text);
}

/** A button that copies what `text` gives, and says so. */
export function copyButton(text, properties = {}) {
  const made = button("Copy", async () => {
    const copied = await copy(text());
    made.textContent = copied ? "Copied" : "Select and copy";
    announce(copied ? "Copied." : "The browser does not let the page copy.");
    setTimeout(() => (made.textContent = "Copy"), 1500);
  }, { class: "quiet small", ...properties });
  return made;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyFromField(text);
  }
}

/** Where there is no clipboard: a page that came over plain HTTP from another machine. */
function copyFromField(text) {
  const field = element("textarea", { class: "hidden-field", "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  return copied;
}

/** Tells a screen reader something that is only seen otherwise. */
export function announce(text) {
  const place = document.getElementById("announcements");
  if (place) place.textContent = text;
}

/** `1.24 s`, `35 ms`, `0.4 ms`. */
export function duration(ms) {
  if (ms >= 60_000) return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
  if (ms >= 10_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`;
  if (ms >= 10) return `${Math.round(ms)} ms`;
  return `${ms.toFixed(1)} ms`;
}

/** A count with its noun. */
export function counted(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}
