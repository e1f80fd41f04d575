// Dark or light: as the system says, unless somebody has chosen.

export type Theme = "system" | "light" | "dark";

const KEY = "sandpen.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

export function theme(): Theme {
  const kept = localStorage.getItem(KEY);
  return kept === "light" || kept === "dark" ? kept : "system";
}

export function restore(): void {
  const chosen = theme();
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
}

export function choose(chosen: Theme): void {
  if (chosen === "system") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, chosen);
  restore();
}

export function isDark(): boolean {
  const chosen = theme();
  return chosen === "system" ? system.matches : chosen === "dark";
}
