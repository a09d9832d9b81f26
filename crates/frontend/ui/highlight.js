// Colours code without knowing its language: comments, strings, numbers and common keywords.
import { element } from "./dom.js";

const LENGTH_MAX = 20_000;
const HASH_COMMENTS = /^(py|python|sh|bash|zsh|shell|console|rb|ruby|yaml|yml|toml|r|perl|make|makefile|dockerfile)$/;
const WORDS = new Set(("abstract and as assert async await bool break case catch char class const continue crate def default " +
  "del do double elif else enum except export extends extern false final finally float fn for from func function global go if " +
  "impl import in include int interface is lambda let long loop match mod module mut namespace new nil none not null or " +
  "package pass private protected pub public raise return select self static struct super switch this throw trait true try " +
  "type typedef union unsafe use using var void where while with yield None True False SELECT FROM WHERE INSERT UPDATE " +
  "DELETE JOIN GROUP ORDER BY AND OR NOT NULL").split(" "));

function pattern(language) {
  const comment = HASH_COMMENTS.test(language) ? "#[^\\n]*" : "\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?\\*\\/";
  // Bounded, so that quotes without an end cost little.
  const text = "\"(?:\\\\.|[^\"\\\\\\n]){0,300}\"|'(?:\\\\.|[^'\\\\\\n]){0,300}'|`(?:\\\\.|[^`\\\\]){0,2000}`";
  return new RegExp(`(${comment})|(${text})|\\b(\\d[\\w.]*)|\\b([A-Za-z_]\\w*)\\b`, "g");
}

/** The nodes of a piece of code. */
export function highlighted(code, language) {
  if (code.length > LENGTH_MAX || language === "text") return [document.createTextNode(code)];
  const nodes = [];
  let at = 0;
  for (const match of code.matchAll(pattern(language))) {
    const kind = match[1] ? "comment" : match[2] ? "string" : match[3] ? "number" : WORDS.has(match[4]) ? "word" : null;
    if (!kind) continue;
    nodes.push(code.slice(at, match.index), element("span", { class: `code-${kind}` }, match[0]));
    at = match.index + match[0].length;
  }
  nodes.push(code.slice(at));
  return nodes;
}
