// The service live: what /stats says once a second, and the slowest requests every five. Counters become rates here.
import { bar } from "./answer.js";
import { askForKey, json } from "./api.js";
import { button, counted, duration, element, fill } from "./dom.js";

const PERIOD_MS = 1000;
const SLOW_PERIODS = 5;
const HISTORY = 120;
const SLOW_SHOWN = 10;
/** Upper bounds of the strip's rows in ms; the last row is everything above. */
const ROWS_MS = [2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500];
const rowName = (ms) => (ms < 1000 ? `${ms} ms` : `${ms / 1000} s`);

export class Live {
  #place;
  #timer = 0;
  #before = null;
  #samples = [];
  #seen = 0;
  #turn = 0;
  #parts;

  constructor(place) {
    this.#place = place;
    const section = (title, ...children) => element("section", { class: "card" }, element("h2", {}, title), ...children);
    this.#parts = {
      state: element("p", { class: "state", role: "status" }),
      tiles: element("dl", { class: "tiles" }),
      roles: element("ul", { class: "roles" }),
      rate: element("canvas", { class: "rate", role: "img" }),
      strip: element("canvas", { class: "strip", role: "img" }),
      happened: element("ol", { class: "happened", role: "log", "aria-live": "polite" }),
      slow: element("div", {}),
    };
    const { state, tiles, roles, rate, strip, happened, slow } = this.#parts;
    fill(place, element("h1", { class: "hidden-text" }, "The service live"), state, tiles,
      section("Tokens per second", rate),
      section("Gaps between tokens", element("p", { class: "note" },
        "Each column is a second, each row a range of gaps. The stronger a cell’s colour, the more of that second’s tokens came after such a gap."), strip),
      section("Roles", roles), section("Deaths and returns", happened), section("Slowest requests of the last hour", slow));
    fill(happened, element("li", { class: "note" }, "No role has died since this frontend began."));
    addEventListener("themechange", () => this.#draw());
    addEventListener("resize", () => this.#draw());
  }

  start() {
    if (this.#timer) return;
    this.#look();
    this.#timer = setInterval(() => document.hidden || this.#look(), PERIOD_MS);
  }

  stop() {
    clearInterval(this.#timer);
    this.#timer = 0;
  }

  async #look() {
    let stats;
    try {
      stats = await json("/stats", { quiet: true });
    } catch (error) {
      fill(this.#parts.state, element("i", { class: "dot bad" }), error.message);
      return;
    }
    const before = this.#before?.frontend === stats.frontend && this.#before.started_unix_s === stats.started_unix_s ? this.#before : null;
    this.#before = stats;
    if (before) this.#samples.push(difference(before, stats));
    if (this.#samples.length > HISTORY) this.#samples.shift();
    this.#showState(stats);
    this.#showTiles(stats);
    this.#showRoles(stats);
    this.#showIncidents(stats);
    this.#draw();
    if (this.#turn++ % SLOW_PERIODS === 0) this.#showSlow();
  }

  #showState(stats) {
    const fine = stats.status === "ok" && !stats.draining;
    const text = stats.draining ? "Draining: open requests finish, new ones are refused." : fine ? "Serving" : stats.problems.join("; ");
    const since = duration(Math.max(0, Date.now() - stats.started_unix_s * 1000));
    fill(this.#parts.state, element("i", { class: `dot ${fine ? "good" : "bad"}` }), element("b", {}, text),
      element("span", { class: "note" }, `${stats.model} · Pinion ${stats.version} · frontend up for ${since}`));
  }

  #showTiles(stats) {
    const last = this.#samples.at(-1);
    const share = (part, whole) => (whole > 0 ? `${((100 * part) / whole).toFixed(0)} %` : "–");
    const { kv_blocks: kv, requests, prefix_cache: prefix, slots } = stats;
    const meter = element("span", { class: "meter", "aria-hidden": "true" },
      ...[["used", kv.used], ["cached", kv.cached], ["free", kv.total - kv.used - kv.cached]].map(([kind, count]) => {
        const part = element("i", { class: kind });
        part.style.flexGrow = String(count);
        return part;
      }));
    const tile = (name, value, note, extra) => element("div", { class: "tile" },
      element("dt", {}, name), element("dd", {}, element("b", {}, value), extra, element("small", {}, note)));
    fill(this.#parts.tiles,
      tile("Running", requests.running.toLocaleString("en"), `${requests.waiting} waiting`),
      tile("Tokens generated", last ? `${last.generated.toFixed(0)}/s` : "–", `${stats.tokens.generated.toLocaleString("en")} in all`),
      tile("Prompt tokens", last ? `${last.prompt.toFixed(0)}/s` : "–", `${share(prefix.found, prefix.queried)} from the prefix cache`),
      tile("KV cache", share(kv.used, kv.total), `${share(kv.cached, kv.total)} kept for reuse, ${counted(kv.total, "block")}`, meter),
      tile("Request slots", `${slots.used} of ${slots.total}`, counted(stats.connections, "connection")),
      tile("Restarts", String(stats.restarts), `${counted(requests.resumed, "request")} went on · ${counted(stats.spare_engines, "spare engine")}`));
  }

  #showRoles(stats) {
    const beat = (role) => (role.heartbeat_ms < 1500 ? "moves" : `last turn ${duration(role.heartbeat_ms)} ago`);
    fill(this.#parts.roles, ...stats.roles.map((role) => element("li", {},
      element("i", { class: `dot ${role.phase === "ready" ? "good" : "bad"}` }), element("b", {}, role.role),
      element("span", {}, role.phase), element("small", { class: "note" }, role.phase === "ready" ? beat(role) : ""))));
  }

  #showIncidents({ incidents }) {
    const fresh = incidents.filter(({ number }) => number > this.#seen);
    if (fresh.length === 0) return;
    if (this.#seen === 0) this.#parts.happened.replaceChildren();
    this.#seen = fresh.at(-1).number;
    for (const incident of fresh) {
      const at = new Date(Date.now() - incident.age_s * 1000);
      const what = incident.what === "lost"
        ? `${incident.role} died. It held ${counted(incident.held, "request")}; ${incident.waiting} wait for its successor.`
        : `${incident.role} is back. ${incident.resumed === 1 ? "1 request goes" : `${incident.resumed} requests go`} on.`;
      this.#parts.happened.prepend(element("li", {}, element("time", { datetime: at.toISOString() }, at.toLocaleTimeString()),
        element("i", { class: `dot ${incident.what === "lost" ? "bad" : "good"}` }), what));
    }
    while (this.#parts.happened.children.length > 32) this.#parts.happened.lastChild.remove();
  }

  async #showSlow() {
    let page;
    try {
      page = await json("/debug/slow", { quiet: true });
    } catch (error) {
      const ask = async () => (await askForKey()) && this.#showSlow();
      fill(this.#parts.slow, error.status === 401 ? button("Enter the key to see them", ask, { class: "quiet" }) : error.message);
      return;
    }
    const rows = page.by_e2e.slice(0, SLOW_SHOWN).map(({ request_id: id, route, reason, timings }) => element("li", {},
      element("div", { class: "line" }, element("b", {}, duration(timings.e2e_ms)), element("code", {}, route),
        element("span", { class: "note" }, `${counted(timings.predicted_n, "token")} · ${reason} · ${id}`)),
      bar(timings).made));
    fill(this.#parts.slow, rows.length > 0 ? element("ol", { class: "slow" }, ...rows) : element("p", { class: "note" }, "No request has ended yet."));
  }

  #draw() {
    if (!this.#place.isConnected || this.#place.hidden) return;
    drawRate(this.#parts.rate, this.#samples);
    drawStrip(this.#parts.strip, this.#samples);
  }
}

/** What happened between two looks. A counter that went back is that of a restarted engine and counts from zero. */
function difference(before, now) {
  const seconds = Math.max(0.001, now.monotonic_s - before.monotonic_s);
  const grown = (a, b) => (b >= a ? b - a : b);
  const rows = new Array(ROWS_MS.length + 1).fill(0);
  now.gaps.counts.forEach((count, index) => {
    const bound = now.gaps.bounds_ms[index] ?? Infinity;
    const row = ROWS_MS.findIndex((ms) => bound <= ms);
    rows[row < 0 ? ROWS_MS.length : row] += count - before.gaps.counts[index];
  });
  return {
    generated: grown(before.tokens.generated, now.tokens.generated) / seconds,
    prompt: grown(before.tokens.prompt, now.tokens.prompt) / seconds,
    rows,
  };
}

function prepared(canvas, height) {
  const width = canvas.clientWidth;
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  context.font = `12px ${getComputedStyle(canvas).fontFamily}`;
  context.textBaseline = "middle";
  return { context, width, colour };
}

const LEFT = 76;

function drawRate(canvas, samples) {
  const height = 120;
  const { context, width, colour } = prepared(canvas, height);
  const top = Math.max(10, ...samples.map(({ generated }) => generated));
  const step = (width - LEFT) / HISTORY;
  const y = (value) => height - 14 - (value / top) * (height - 28);
  context.fillStyle = colour("muted");
  context.textAlign = "right";
  context.strokeStyle = colour("line");
  for (const value of [0, top]) {
    context.fillText(value.toFixed(0), LEFT - 10, y(value));
    context.beginPath();
    context.moveTo(LEFT, y(value));
    context.lineTo(width, y(value));
    context.stroke();
  }
  context.fillStyle = colour("accent");
  samples.forEach(({ generated }, index) => {
    const x = width - (samples.length - index) * step;
    context.fillRect(x, y(generated), Math.max(1, step - 1), y(0) - y(generated));
  });
  const last = samples.at(-1);
  canvas.setAttribute("aria-label", last
    ? `${last.generated.toFixed(0)} tokens per second now, at most ${top.toFixed(0)} in the last two minutes` : "No figures yet");
}

function drawStrip(canvas, samples) {
  const rowHeight = 16;
  const rows = ROWS_MS.length + 1;
  const { context, width, colour } = prepared(canvas, rows * rowHeight);
  const step = (width - LEFT) / HISTORY;
  context.textAlign = "right";
  for (let row = 0; row < rows; row += 1) {
    const y = (rows - 1 - row) * rowHeight;
    context.fillStyle = colour("muted");
    if (row % 2 === 0) context.fillText(row < ROWS_MS.length ? `≤ ${rowName(ROWS_MS[row])}` : "more", LEFT - 10, y + rowHeight / 2);
    context.fillStyle = colour("cell");
    context.fillRect(LEFT, y, width - LEFT, rowHeight - 1);
  }
  context.fillStyle = colour("accent");
  samples.forEach(({ rows: counts }, index) => {
    const sum = counts.reduce((a, b) => a + b, 0);
    const x = width - (samples.length - index) * step;
    counts.forEach((count, row) => {
      if (count <= 0) return;
      context.globalAlpha = 0.25 + 0.75 * Math.sqrt(count / sum);
      context.fillRect(x, (rows - 1 - row) * rowHeight, Math.max(1, step - 0.5), rowHeight - 1);
    });
  });
  context.globalAlpha = 1;
  canvas.setAttribute("aria-label", described(samples));
}

function described(samples) {
  const sums = new Array(ROWS_MS.length + 1).fill(0);
  for (const { rows } of samples) rows.forEach((count, row) => (sums[row] += count));
  const most = sums.indexOf(Math.max(...sums));
  if (sums[most] === 0) return "No tokens in the last two minutes";
  const longest = sums.findLastIndex((count) => count > 0);
  const name = (row) => (row < ROWS_MS.length ? `up to ${rowName(ROWS_MS[row])}` : `over ${rowName(ROWS_MS.at(-1))}`);
  return `Gaps between tokens in the last two minutes: most ${name(most)}, the longest ${name(longest)}`;
}
