import { spoken } from "../format.ts";
import type { Run } from "../types.ts";

export function Badge({ tone, children }: { tone: string; children: preact.ComponentChildren }) {
  return <span class={`badge ${tone}`}>{children}</span>;
}

export function RunBadge({ run }: { run: Run }) {
  if (run.state === "running") return <Badge tone="busy">running</Badge>;
  if (run.state !== "exited") return <Badge tone="bad">{spoken(run.state)}</Badge>;
  return run.exit_code === 0 ? <Badge tone="good">exit 0</Badge> : <Badge tone="bad">exit {run.exit_code}</Badge>;
}
