// A line over time. What it shows is said in words too.

import { clock } from "../format.ts";

export interface Point {
  at: number;
  value: number | null;
}

interface Properties {
  points: Point[];
  /** The top of the chart, unless something is higher. */
  most: number;
  label: string;
  kind: "cpu" | "memory";
  show: (value: number) => string;
  large?: boolean;
}

const WIDTH = 300;

export function Chart({ points, most, label, kind, show, large = false }: Properties) {
  const height = large ? 90 : 36;
  const known = points.filter((point): point is { at: number; value: number } => point.value !== null);
  const top = Math.max(most, ...known.map((point) => point.value)) || 1;
  const first = known[0]?.at ?? 0;
  const last = known.at(-1)?.at ?? 0;
  const x = (at: number) => (last > first ? ((at - first) / (last - first)) * WIDTH : WIDTH);
  const y = (value: number) => height - 2 - (value / top) * (height - 4);
  const line = known.map((point) => `${x(point.at).toFixed(1)},${y(point.value).toFixed(1)}`).join(" ");
  const now = known.at(-1)?.value;
  const words = now === undefined ? `${label}: not known yet` : `${label}: ${show(now)} of ${show(most)}`;
  return (
    <figure class={`chart ${kind}${large ? " large" : ""}`}>
      <figcaption>
        <span>{label}</span>
        <strong>{now === undefined ? "–" : show(now)}</strong>
        <small>of {show(most)}</small>
      </figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${height}`} preserveAspectRatio="none" role="img" aria-label={words}>
        <line class="base" x1="0" x2={WIDTH} y1={height - 1} y2={height - 1} />
        {known.length > 1 && <polygon points={`${x(first)},${height} ${line} ${WIDTH},${height}`} />}
        {known.length > 1 && <polyline points={line} />}
      </svg>
      {large && known.length > 1 && (
        <div class="times" aria-hidden="true">
          <span>{clock(first)}</span>
          <span>{clock(last)}</span>
        </div>
      )}
    </figure>
  );
}
