// The page over a model: chat, stop, edit, regenerate, a death under a stream, completion, live figures, the API's page.
// By keyboard alone where a person would type; then contrast in light and dark, and a phone of 375 px.
import assert from "node:assert/strict";
import { BASE, browse, poorContrast, seen, shot, until } from "./browser.mjs";

const { open, end } = await browse();
const page = await open();
const focused = (of = page) => of.evaluate(() => document.activeElement.id || document.activeElement.textContent.trim());

/** Presses Tab until the focus is on what has this id or text. */
async function tabTo(name, of = page) {
  for (let count = 0; count < 200; count += 1) {
    if ((await focused(of)) === name) return;
    await of.keyboard.press("Tab");
  }
  throw new Error(`Tab does not lead to ${name}`);
}

const answers = () => page.$$eval(".message.assistant > .text", (nodes) => nodes.map((node) => node.innerText));
const grows = (length) => until(page, "the answer grows", (length) => {
  const text = document.querySelector(".message.assistant:last-child > .text")?.innerText ?? "";
  return text.length > length ? text.length : 0;
}, length);
const complete = () => until(page, "the answer ends", () =>
  !document.body.classList.contains("streaming") && document.querySelector(".message.assistant:last-child .end > *"));

async function say(text) {
  await tabTo("prompt");
  await page.keyboard.type(text);
  await page.keyboard.press("Enter");
}

async function settings(values) {
  await tabTo("settings-button");
  await page.keyboard.press("Enter");
  for (const [id, value] of Object.entries(values)) {
    await tabTo(id);
    await page.keyboard.down("Control");
    await page.keyboard.press("a");
    await page.keyboard.up("Control");
    await page.keyboard.type(value);
  }
  await tabTo("settings-close");
  await page.keyboard.press("Enter");
  assert.equal(await focused(), "settings-button", "the focus goes back to where it came from");
}

await page.goto(`${BASE}/`, { waitUntil: "networkidle0" });
await shot(page, "empty");
assert.equal(await focused(), "prompt");
await tabTo("Skip to the field to write in");
await page.keyboard.press("Enter");
assert.equal(await focused(), "prompt");
await page.evaluate(() => document.getElementById("settings-button").focus());
await settings({ "set-temperature": "0", "set-max_tokens": "24" }).catch(async (error) => {
  throw new Error(`${error.message}; the focus is on ${await focused()}`);
});

await say("ROMEO:");
await grows(0);
assert.equal(await page.$eval(".message.assistant", (node) => node.getAttribute("aria-busy")), "true");
await complete();
const [first] = await answers();
assert.ok(first.length > 20, first);
const account = await page.$eval(".account summary", (node) => node.innerText);
assert.match(account, /^24 tokens · [\d.]+ tokens\/s · first after [\d.]+ m?s · [\d.]+ m?s in all/);
assert.match(await page.$eval(".bar", (node) => node.getAttribute("aria-label")), /^Queue .*, Prefill .*, Decode .*, Finish /);
assert.equal(await page.$eval("#announcements", (node) => node.textContent), "The answer is complete.");
await shot(page, "answer");
seen("an answer came as a stream, by keyboard alone, with its account");

await tabTo("Regenerate");
await page.keyboard.press("Enter");
await complete();
assert.deepEqual(await answers(), [first], "greedy: the same once more, in place of the first");
seen("it was written anew");

await page.evaluate(() => document.getElementById("prompt").focus());
await page.keyboard.press("ArrowUp");
await page.keyboard.type(" and JULIET");
await page.keyboard.press("Enter");
await complete();
const users = await page.$$eval(".message.user .text", (nodes) => nodes.map((node) => node.innerText));
assert.deepEqual(users, ["ROMEO: and JULIET"]);
assert.equal((await answers()).length, 1);
seen("a message was edited and sent again");

await page.evaluate(() => document.getElementById("settings-button").focus());
await settings({ "set-max_tokens": "120" });
await say("KING HENRY:");
await grows(10);
await page.keyboard.press("Escape");
await complete();
assert.match(await page.$eval(".message:last-child .end", (node) => node.innerText), /^Stopped\./);
await until(page, "the engine has nothing to do", async () => (await (await fetch("/stats")).json()).requests.running === 0);
seen("Escape stopped an answer, and the engine with it");

await tabTo("Regenerate");
await page.keyboard.press("Enter");
const length = await grows(10);
process.kill(Number(process.env.ENGINE_PID), "SIGKILL");
await grows(length + 40);
await complete();
assert.match(await page.$eval(".message:last-child .account", (node) => node.innerText), /went on after a role died/);
const resumed = (await answers()).at(-1);
await shot(page, "resumed");
await tabTo("Regenerate");
await page.keyboard.press("Enter");
await complete();
assert.equal((await answers()).at(-1), resumed, "the text is what it is without the death");
seen("the engine was killed under a stream; the text went on and is what it is without that");

await page.reload({ waitUntil: "networkidle0" });
assert.equal((await answers()).at(-1), resumed, "the conversation is kept");
await page.evaluate(() => document.getElementById("prompt").focus());
seen("the conversation is there after a reload");

const hostile = await page.evaluate(async () => {
  const { Markdown } = await import("/ui/markdown.js");
  const place = document.createElement("div");
  const text = '<img src=x onerror="window.hit=1"> <script>window.hit=1</script>\n\n[a](javascript:alert(1)) [b](data:text/html,x) ' +
    '![c](https://example.org/x.png)\n\n```html\n<b onclick=x>\n```\n\n| <i>a</i> | b |\n|---|---|\n| `c` | **d** |\n\n' + "> ".repeat(50) + "deep" +
    "\n\n" + "*".repeat(2000) + "a" + "_".repeat(2000);
  const shown = new Markdown(place);
  for (let end = 1; end <= text.length; end += 37) shown.show(text.slice(0, end));
  shown.show(text);
  document.body.append(place);
  const again = document.createElement("div");
  new Markdown(again).show(text);
  const found = {
    names: [...new Set([...place.querySelectorAll("*")].map((node) => node.localName))].sort(),
    links: [...place.querySelectorAll("a")].map((link) => link.href), hit: window.hit ?? null,
    handlers: [...place.querySelectorAll("*")].some((node) => [...node.attributes].some(({ name }) => name.startsWith("on"))),
    same: place.textContent === again.textContent, kept: place.textContent.includes('<img src=x onerror="window.hit=1">'),
  };
  place.remove();
  return found;
});
assert.deepEqual(hostile, {
  names: ["a", "blockquote", "button", "code", "div", "em", "figcaption", "figure", "p", "pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr"]
    .filter((name) => hostile.names.includes(name)),
  links: ["https://example.org/x.png"], hit: null, handlers: false, same: true, kept: true,
});
seen("hostile Markdown stays text, and a text that grows looks like one that came whole");

await tabTo("new-completion");
await page.keyboard.press("Enter");
await page.evaluate(() => document.getElementById("document").focus());
await page.keyboard.type("JULIET:\n");
await page.evaluate(() => document.getElementById("settings-button").focus());
await settings({ "set-max_tokens": "16" });
await tabTo("Continue");
await page.keyboard.press("Enter");
await until(page, "the text is complete", () => !document.body.classList.contains("streaming") && document.querySelector(".account"));
assert.ok((await page.$eval("#document", (node) => node.value)).length > 10);
await shot(page, "completion");
await tabTo("Take back");
await page.keyboard.press("Enter");
assert.equal(await page.$eval("#document", (node) => node.value), "JULIET:\n");
seen("a completion was written and taken back");

await tabTo("live-tab");
await page.keyboard.press("Enter");
await until(page, "the live tab shows the death", () => document.querySelector(".happened")?.innerText.includes("engine-0 died"));
await until(page, "and the return", () => document.querySelector(".happened").innerText.includes("engine-0 is back"));
await until(page, "and the slowest requests", () => document.querySelectorAll(".slow li .bar").length > 3);
// One request after the other, so that one runs whenever the page looks.
await page.evaluate(() => {
  const body = '{"prompt": "A", "max_tokens": 60, "ignore_eos": true}';
  const ask = () => fetch("/v1/completions", { method: "POST", headers: { "content-type": "application/json" }, body });
  void (async () => { while (!window.isShown) await ask(); })();
});
await until(page, "the gaps are drawn", () => document.querySelector(".strip").ariaLabel?.startsWith("Gaps between tokens"));
await until(page, "the request shows", () => document.querySelector(".tile b").textContent === "1");
await page.evaluate(() => { window.isShown = true; });
await shot(page, "live");
seen("the live tab shows roles, rates, gaps, the death, the return and the slowest requests");

await page.goto(`${BASE}/docs`, { waitUntil: "networkidle0" });
await page.evaluate(() => document.querySelector("#post-v1-completions .tools button:last-child").focus());
await page.keyboard.press("Enter");
await tabTo("Send");
await page.keyboard.press("Enter");
await until(page, "the tried request answers", () => document.querySelector(".attempt pre")?.textContent.includes("data: [DONE]"));
assert.match(await page.$eval(".attempt [role=status]", (node) => node.innerText), /^200 OK, .* in all$/);
assert.ok((await page.$eval("#post-v1-completions code[data-origin]", (node) => node.textContent)).includes(BASE));
await shot(page, "docs");
seen("an example of the API's page was tried");

/** Every control that Tab reaches shows that it has the focus. */
async function stops(of) {
  return of.evaluate(() => [...document.querySelectorAll("a[href], button, input, textarea, select, summary")]
    .filter((node) => node.checkVisibility({ visibilityProperty: true }) && node.tabIndex >= 0).length);
}

for (const theme of ["light", "dark"]) {
  for (const [width, height] of [[1280, 800], [375, 720]]) {
    const own = await open({ width, height, theme });
    await own.goto(`${BASE}/`, { waitUntil: "networkidle0" });
    await own.evaluate((stored) => Object.entries(stored).forEach(([key, value]) => localStorage.setItem(key, value)),
      await page.evaluate(() => Object.fromEntries(Object.entries(localStorage).filter(([, value]) => value.includes('"kind":"chat"')))));
    for (const path of ["/", "/#live", "/docs"]) {
      await own.goto(`${BASE}${path}`);
      await own.reload({ waitUntil: "load" });
      if (path === "/#live") await until(own, "the live tab has figures", () => document.querySelectorAll(".tile").length === 6);
      const name = `${path.replaceAll(/\W/g, "") || "chat"}-${width}-${theme}`;
      assert.deepEqual(await poorContrast(own), [], `contrast of ${name}`);
      assert.ok((await own.evaluate(() => document.documentElement.scrollWidth)) <= width, `${name} is wider than ${width} px`);
      assert.equal(await own.evaluate(() => document.documentElement.dataset.theme), theme);
      assert.ok((await stops(own)) > 4);
      await shot(own, name);
    }
    if (width === 375) await phone(own);
  }
}
seen("contrast is AA in light and dark, and nothing is wider than a phone");

async function phone(own) {
  await own.goto(`${BASE}/`, { waitUntil: "networkidle0" });
  await own.click("#side-button");
  assert.equal(await focused(own), "new-chat");
  await own.keyboard.press("Escape");
  assert.equal(await focused(own), "side-button");
  await own.click("#settings-button");
  await own.keyboard.press("Escape");
  assert.equal(await own.$eval("#settings", (node) => node.hidden), true);
  const small = await own.$$eval("button", (nodes) => nodes.filter((node) => node.checkVisibility({ visibilityProperty: true }))
    .map((node) => node.getBoundingClientRect()).filter((box) => box.height < 24 || box.width < 24).length);
  assert.equal(small, 0, "every button is large enough for a finger");
}

await page.goto(`${BASE}/`, { waitUntil: "networkidle0" });
await page.click("button.theme");
const chosen = await page.evaluate(() => document.documentElement.dataset.theme);
await page.reload();
assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), chosen, "the chosen colours stay");
assert.equal(chosen, "dark");
await end();
seen("no error on the console, no request to another host");
