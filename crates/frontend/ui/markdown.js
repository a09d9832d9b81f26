// Markdown to elements: headings, paragraphs, lists, tables, quotes, code, emphasis and links. It makes text nodes and a
// fixed set of elements, never markup from a string; links lead to http and https only, and images are shown as links,
// because the page asks no other host.
import { copyButton, element } from "./dom.js";
import { highlighted } from "./highlight.js";

const DEPTH_MAX = 8;

/** Keeps the elements of a text that grows: blocks whose source is the same keep their element. */
export class Markdown {
  #place;
  #blocks = [];

  constructor(place) {
    this.#place = place;
  }

  show(text) {
    const blocks = split(text.split("\n"));
    let same = 0;
    while (same < blocks.length && this.#blocks[same]?.source === blocks[same].source) same += 1;
    for (const old of this.#blocks.slice(same)) old.node.remove();
    const kept = this.#blocks.slice(0, same);
    for (const block of blocks.slice(same)) {
      block.node = render(block, 0);
      this.#place.append(block.node);
      kept.push(block);
    }
    this.#blocks = kept;
  }
}

const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])\s*(?:\1\s*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:\s+|$)(.*)$/;
const TABLE_RULE = /^ {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

function split(lines) {
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    const block = blank(lines[at]) ? { end: at + 1 } : take(lines, at);
    if (block.kind) blocks.push({ ...block, source: lines.slice(at, block.end).join("\n") });
    at = block.end;
  }
  return blocks;
}

const blank = (line) => line.trim() === "";

function take(lines, at) {
  const line = lines[at];
  const fence = line.match(FENCE);
  if (fence) return takeCode(lines, at, fence);
  const heading = line.match(HEADING);
  if (heading) return { kind: "heading", level: heading[1].length, text: heading[2], end: at + 1 };
  if (RULE.test(line)) return { kind: "rule", end: at + 1 };
  if (QUOTE.test(line)) return takeQuote(lines, at);
  if (ITEM.test(line)) return takeList(lines, at);
  if (line.includes("|") && TABLE_RULE.test(lines[at + 1] ?? "")) return takeTable(lines, at);
  return takeParagraph(lines, at);
}

function takeCode(lines, at, [, mark, language]) {
  const closes = (line) => line.trim().startsWith(mark) && line.trim().replaceAll(mark[0], "") === "";
  let end = at + 1;
  while (end < lines.length && !closes(lines[end])) end += 1;
  return { kind: "code", language: language.toLowerCase(), text: lines.slice(at + 1, end).join("\n"), end: end + 1 };
}

function takeQuote(lines, at) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  return { kind: "quote", lines: lines.slice(at, end).map((line) => line.replace(QUOTE, "")), end };
}

function takeList(lines, at) {
  const first = lines[at].match(ITEM);
  const ordered = /\d/.test(first[2]);
  const indent = first[1].length;
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = lines[end].match(ITEM);
    const leading = lines[end].match(/^ */)[0].length;
    if (item && leading <= indent + 1 && /\d/.test(item[2]) === ordered && !RULE.test(lines[end])) {
      items.push([item[3]]);
    } else if (blank(lines[end])) {
      const next = lines[end + 1] ?? "";
      const goesOn = !blank(next) && (next.match(/^ */)[0].length > indent || ITEM.test(next));
      if (!goesOn) break;
      items.at(-1).push("");
    } else if (leading > indent || !startsBlock(lines[end])) {
      items.at(-1).push(lines[end].slice(Math.min(leading, indent + first[2].length + 1)));
    } else break;
    end += 1;
  }
  return { kind: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, items, end };
}

function takeTable(lines, at) {
  const aligns = cells(lines[at + 1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "end") : "start"));
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end += 1;
  return { kind: "table", head: cells(lines[at]), rows: lines.slice(at + 2, end).map(cells), aligns, end };
}

function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function startsBlock(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
}

function takeParagraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && !blank(lines[end]) && !startsBlock(lines[end])) end += 1;
  return { kind: "paragraph", text: lines.slice(at, end).join("\n"), end };
}

function render(block, depth) {
  switch (block.kind) {
    case "heading":
      return element(`h${Math.min(block.level + 2, 6)}`, {}, ...inline(block.text));
    case "rule":
      return element("hr");
    case "code":
      return codeBlock(block);
    case "quote":
      return element("blockquote", {}, ...nested(block.lines, depth));
    case "list":
      return list(block, depth);
    case "table":
      return table(block);
    default:
      return element("p", {}, ...inline(block.text));
  }
}

function nested(lines, depth) {
  if (depth >= DEPTH_MAX) return [lines.join("\n")];
  return split(lines).map((block) => render(block, depth + 1));
}

function codeBlock({ language, text }) {
  return element("figure", { class: "code" },
    element("figcaption", {}, element("span", {}, language || "code"), copyButton(() => text)),
    element("pre", { tabindex: "0" }, element("code", {}, ...highlighted(text, language))));
}

function list({ ordered, start, items }, depth) {
  const made = items.map((lines) => {
    const blocks = nested(lines, depth);
    // A single paragraph is the item itself.
    const alone = blocks[0]?.nodeName === "P" && blocks.slice(1).every((block) => /^[UO]L$/.test(block.nodeName));
    return element("li", {}, ...(alone ? [...blocks[0].childNodes, ...blocks.slice(1)] : blocks));
  });
  return ordered ? element("ol", { start: start === 1 ? null : start }, ...made) : element("ul", {}, ...made);
}

function table({ head, rows, aligns }) {
  const row = (name, texts) => element("tr", {},
    ...texts.slice(0, head.length).map((text, index) => element(name, { class: `align-${aligns[index] ?? "start"}` }, ...inline(text))));
  return element("div", { class: "table", tabindex: "0" },
    element("table", {}, element("thead", {}, row("th", head)), element("tbody", {}, ...rows.map((texts) => row("td", texts)))));
}

const INLINE = new RegExp([
  "\\\\([\\\\`*_{}\\[\\]()#+\\-.!|~>])", // 1: an escaped mark
  "(`+)([\\s\\S]*?[^`])\\2(?!`)", // 2, 3: code
  "!?\\[([^\\[\\]]*)\\]\\((\\S+?)(?:\\s+\"[^\"]*\")?\\)", // 4, 5: a link or an image
  "(https?:\\/\\/[^\\s<>()]*[^\\s<>().,;:!?'\"])", // 6: an address
  "\\*\\*(?=\\S)([\\s\\S]*?\\S)\\*\\*", // 7: bold
  "__(?=\\S)([\\s\\S]*?\\S)__(?!\\w)", // 8: bold
  "\\*(?=[^\\s*])([\\s\\S]*?[^\\s*])\\*(?!\\*)", // 9: italic
  "(?<!\\w)_(?=[^\\s_])([\\s\\S]*?[^\\s_])_(?!\\w)", // 10: italic
  "~~(?=\\S)([\\s\\S]*?\\S)~~", // 11: struck out
  "\\\\?(\\n)", // 12: a line break; models mean it, with two spaces before it or none
].join("|"), "g");

function inline(text, depth = 0) {
  if (depth >= DEPTH_MAX) return [text];
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    if (match.index > at) nodes.push(text.slice(at, match.index));
    nodes.push(inlineNode(match, depth));
    at = match.index + match[0].length;
  }
  if (at < text.length) nodes.push(text.slice(at));
  return nodes;
}

function inlineNode(match, depth) {
  const within = (inner) => inline(inner, depth + 1);
  const [all, escaped, , code, label, target, address, bold, bold2, italic, italic2, struck, end] = match;
  if (escaped !== undefined) return escaped;
  if (code !== undefined) return element("code", {}, code.replace(/^ (.*) $/s, "$1"));
  if (target !== undefined) return link(target, within(label || target), all);
  if (address !== undefined) return link(address, [address], all);
  if ((bold ?? bold2) !== undefined) return element("strong", {}, ...within(bold ?? bold2));
  if ((italic ?? italic2) !== undefined) return element("em", {}, ...within(italic ?? italic2));
  if (struck !== undefined) return element("del", {}, ...within(struck));
  return end !== undefined ? element("br") : all;
}

function link(target, children, source) {
  let address;
  try {
    address = new URL(target);
  } catch {
    return source;
  }
  if (address.protocol !== "https:" && address.protocol !== "http:") return source;
  return element("a", { href: address.href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}
