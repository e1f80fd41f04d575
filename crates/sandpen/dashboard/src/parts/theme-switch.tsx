import { useState } from "preact/hooks";
import { choose, type Theme, theme } from "../theme.ts";

const THEMES: [Theme, string][] = [
  ["system", "◐ System"],
  ["light", "○ Light"],
  ["dark", "● Dark"],
];

export function ThemeSwitch() {
  const [chosen, setChosen] = useState(theme());
  return (
    <label class="theme">
      <span class="unseen">Colours</span>
      <select
        value={chosen}
        onChange={(event) => {
          const next = event.currentTarget.value as Theme;
          choose(next);
          setChosen(next);
        }}
      >
        {THEMES.map(([name, words]) => (
          <option key={name} value={name}>
            {words}
          </option>
        ))}
      </select>
    </label>
  );
}
