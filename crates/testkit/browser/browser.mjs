// Starts the browser, watches each page for errors and foreign requests, and has what both scripts look for.
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.NODE_FOLDER, "package.json"));
const puppeteer = (await import(require.resolve("puppeteer-core"))).default;

export const BASE = process.env.BASE_URL;
/** Debug builds on two busy cores write a few tokens in a second. */
export const PATIENCE_MS = 180_000;

/** A browser whose pages are watched. */
export async function browse() {
  const browser = await puppeteer.launch({
    executablePath: process.env.CHROMIUM, headless: true, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
  });
  const faults = [];
  const open = async ({ width = 1280, height = 800, theme = "light", forgive = () => false } = {}) => {
    const page = await (await browser.createBrowserContext()).newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    await page.setViewport({ width, height });
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }, { name: "prefers-reduced-motion", value: "reduce" }]);
    const fault = (text) => forgive(text) || faults.push(text);
    page.on("console", (message) => ["error", "warn"].includes(message.type()) && fault(`console: ${message.text()}`));
    page.on("pageerror", (error) => fault(`page: ${error.message}`));
    page.on("request", (request) => {
      const url = request.url();
      if (!url.startsWith(`${BASE}/`) && !url.startsWith("data:")) fault(`a request to ${url}`);
    });
    page.on("dialog", (dialog) => dialog.accept());
    return page;
  };
  const end = async () => {
    await browser.close();
    assert.deepEqual(faults, [], "the browser complained");
  };
  return { open, end };
}

/** Keeps a picture, if pictures are wanted. */
export async function shot(page, name) {
  if (!process.env.SHOTS) return;
  mkdirSync(process.env.SHOTS, { recursive: true });
  await page.screenshot({ path: join(process.env.SHOTS, `${name}.png`) });
}

/** Waits until `look` gives something true in the page. */
export async function until(page, what, look, ...given) {
  try {
    return await (await page.waitForFunction(look, { polling: 50, timeout: PATIENCE_MS }, ...given)).jsonValue();
  } catch (error) {
    await shot(page, "failed");
    throw new Error(`${what}: ${error.message}`);
  }
}

/** Says that one thing was seen. */
export function seen(what) {
  console.log(`browser: ${what}`);
}

/** Texts whose contrast is below WCAG AA, in the page as it is. */
export function poorContrast(page) {
  return page.evaluate(() => {
    const parse = (colour) => colour.match(/[\d.]+/g).map(Number);
    const over = ([r, g, b, a = 1], below) => [r, g, b].map((part, index) => part * a + below[index] * (1 - a));
    const behind = (node) => {
      const colours = [];
      for (let at = node; at; at = at.parentElement) colours.push(parse(getComputedStyle(at).backgroundColor));
      return colours.reverse().reduce((below, colour) => over(colour, below), [255, 255, 255]);
    };
    const luminance = (colour) => colour.map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
      .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
    const found = [];
    for (const node of document.body.querySelectorAll("*")) {
      const text = [...node.childNodes].filter((child) => child.nodeType === 3).map((child) => child.data.trim()).join("");
      const style = getComputedStyle(node);
      const box = node.getBoundingClientRect();
      if (!text || node.closest("noscript, .hidden-text, :disabled") || box.width < 2 || style.visibility === "hidden") continue;
      const back = behind(node);
      const [a, b] = [luminance(over(parse(style.color), back)), luminance(back)].sort((x, y) => y - x);
      const size = parseFloat(style.fontSize);
      const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
      const ratio = (a + 0.05) / (b + 0.05);
      if (ratio < (large ? 3 : 4.5)) found.push(`${text.slice(0, 30)}: ${ratio.toFixed(2)}`);
    }
    return found;
  });
}
