// The page before a service that asks for a key: it loads without one, asks when a call needs it, and keeps it in the tab.
import assert from "node:assert/strict";
import { BASE, browse, seen, shot, until } from "./browser.mjs";

const { KEY } = process.env;
const { open, end } = await browse();
// The browser itself reports each refusal on its console.
const page = await open({ forgive: (text) => text.includes("401 (Unauthorized)") });

await page.goto(`${BASE}/`, { waitUntil: "networkidle0" });
assert.equal(await page.$eval("#model", (node) => node.textContent), process.env.MODEL);

async function send(key) {
  await page.focus("#prompt");
  await page.keyboard.type("hi");
  await page.keyboard.press("Enter");
  await page.waitForSelector("dialog[open]");
  await shot(page, "key");
  await page.keyboard.type(key);
  await page.keyboard.press("Enter");
  await until(page, "an end", () => document.querySelector(".message:last-child .end > *") && !document.body.classList.contains("streaming"));
}

await send("wrong");
assert.match(await page.$eval(".message:last-child .error", (node) => node.textContent), /key/);
await send(KEY);
assert.ok((await page.$eval(".message:last-child > .text", (node) => node.innerText)).length > 0);
const kept = await page.evaluate((key) => ({
  session: Object.values(sessionStorage).includes(key), local: JSON.stringify({ ...localStorage }).includes(key),
}), KEY);
assert.deepEqual(kept, { session: true, local: false });
await page.goto(`${BASE}/docs`, { waitUntil: "networkidle0" });
assert.ok(await page.$("#key-button"));
await page.goto(`${BASE}/#live`);
await until(page, "the slowest requests", () => document.querySelector(".slow li"));
await end();
seen("the page loads without the key, asks for it, refuses a wrong one, and keeps it in the tab alone");
