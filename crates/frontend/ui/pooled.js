// Instead of chats, where the model pools: the routes that it serves, and a ranking to try.
import { json } from "./api.js";
import { announce, element, fill } from "./dom.js";

const ROUTES = [
  ["/v1/embeddings", "a vector for each text"],
  ["/v1/score", "how alike two texts are"],
  ["/v1/rerank", "documents in the order in which they fit a query"],
];

/** Fills `place` for the model of this name. */
export function pooled(place, model) {
  const query = element("input", { id: "query", required: true, autocomplete: "off" });
  const documents = element("textarea", { id: "documents", rows: 6, required: true });
  const ranking = element("ol", { id: "ranking" });
  const rank = async (event) => {
    event.preventDefault();
    const lines = documents.value.split("\n").filter((line) => line.trim() !== "");
    try {
      const { results } = await json("/v1/rerank", { body: { query: query.value, documents: lines } });
      fill(ranking, ...results.map(({ index, relevance_score }) => element("li", {},
        element("b", {}, relevance_score.toFixed(3)), ` ${lines[index]}`)));
      announce("The documents are in order.");
    } catch (error) {
      fill(ranking, element("li", { class: "error" }, error.message));
      announce(error.message);
    }
  };
  const label = (name, text) => element("label", { for: name }, text);
  fill(place,
    element("section", { class: "card" },
      element("h2", {}, `${model} makes vectors and writes no text`),
      element("ul", {}, ...ROUTES.map(([path, gives]) => element("li", {}, element("code", {}, path), `: ${gives}`))),
      element("p", { class: "note" }, "The form of their requests is in ", element("a", { href: "docs" }, "the API"), ".")),
    element("form", { class: "card", onsubmit: rank },
      element("h2", {}, "Try a ranking"),
      label("query", "Query"), query, label("documents", "Documents, one on each line"), documents,
      element("p", {}, element("button", { type: "submit", class: "primary" }, "Rank"))),
    element("section", { class: "card", "aria-label": "Ranking" }, ranking));
}
