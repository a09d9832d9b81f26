// Light or dark: as the system says, or as was chosen here. Not a module, so that it runs before the first paint.
"use strict";
{
  const KEY = "pinion.theme";
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null;
    }
  };
  let chosen = stored();
  const apply = () => {
    const theme = chosen ?? (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    for (const button of document.querySelectorAll("button.theme")) {
      button.setAttribute("aria-pressed", String(theme === "dark"));
    }
    dispatchEvent(new Event("themechange"));
  };
  apply();
  dark.addEventListener("change", apply);
  addEventListener("storage", (event) => {
    if (event.key !== KEY) return;
    chosen = event.newValue;
    apply();
  });
  addEventListener("DOMContentLoaded", () => {
    apply();
    for (const button of document.querySelectorAll("button.theme")) {
      button.addEventListener("click", () => {
        chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
        try {
          localStorage.setItem(KEY, chosen);
        } catch {
          // Without storage the choice lasts as long as the page.
        }
        apply();
      });
    }
  });
}
