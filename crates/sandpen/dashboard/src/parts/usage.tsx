// What a sandbox uses, as two charts.

import { percent, size } from "../format.ts";
import { samplesOf } from "../live.ts";
import type { Sandbox } from "../types.ts";
import { Chart } from "./chart.tsx";

export function UsageCharts({ sandbox, large = false }: { sandbox: Sandbox; large?: boolean }) {
  const samples = samplesOf(sandbox.id);
  return (
    <div class={large ? "charts large" : "charts"}>
      <Chart
        kind="cpu"
        label="CPU"
        large={large}
        most={sandbox.cpus * 100}
        show={percent}
        points={samples.map(({ at, cpu }) => ({ at, value: cpu }))}
      />
      <Chart
        kind="memory"
        label="Memory"
        large={large}
        most={sandbox.memory_bytes}
        show={size}
        points={samples.map(({ at, memory }) => ({ at, value: memory }))}
      />
    </div>
  );
}
