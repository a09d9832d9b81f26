// The page before a model that pools: no chat, the routes by name, a ranking.
import assert from "node:assert/strict";
import { BASE, browse, poorContrast, seen, shot, until } from "./browser.mjs";

const { open, end } = await browse();
for (const theme of ["light", "dark"]) {
  const page = await open({ theme, width: theme === "dark" ? 400 : 1280 });
  await page.goto(`${BASE}/`, { waitUntil: "networkidle0" });
  const shown = (id) => page.$eval(id, (node) => node.checkVisibility());
  assert.deepEqual([await shown("#pooled"), await shown("#chat"), await shown("#prompt"), await shown("#side-button")],
    [true, false, false, false]);
  const text = await page.$eval("#pooled", (node) => node.innerText);
  for (const route of ["/v1/embeddings", "/v1/score", "/v1/rerank"]) assert.ok(text.includes(route), text);
  await page.type("#query", "alpha");
  await page.type("#documents", "omega\n\nalpha\nbeta");
  await page.click("#pooled button[type=submit]");
  await until(page, "a ranking", () => document.querySelectorAll("#ranking li").length === 3);
  assert.match(await page.$eval("#ranking li", (node) => node.innerText), /^1\.000 alpha$/);
  assert.deepEqual(await poorContrast(page), []);
  await shot(page, `pooled-${theme}`);
  await page.keyboard.press("Escape");
  await page.goto(`${BASE}/#live`);
  await until(page, "the figures", () => document.querySelector("#live .tile"));
  assert.equal(await shown("#pooled"), false);
  await page.click("#chat-tab");
  await until(page, "the way back", () => document.querySelector("#pooled").checkVisibility());
  assert.equal(await shown("#chat"), false);
}
await end();
seen("a model that pools has its routes and a ranking in place of chats");
