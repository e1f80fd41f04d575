// The state of everything, as the server tells it again and again, and what sandboxes used over the last minutes.

import { useEffect, useState } from "preact/hooks";
import { ask, events, get, Trouble, words } from "./http.ts";
import type { Failure, PastUsage, Sandbox, State } from "./types.ts";

export interface Sample {
  at: number;
  /** Of one processor, in percent. */
  cpu: number | null;
  memory: number | null;
}

/** As much as the server remembers. */
const KEPT_MS = 30 * 60 * 1000;
const history = new Map<string, Sample[]>();
const counters = new Map<string, { at: number; cpu: number }>();

function remember(at: number, sandboxes: Sandbox[]): void {
  const there = new Set(sandboxes.map((sandbox) => sandbox.id));
  for (const id of history.keys()) {
    if (there.has(id)) continue;
    history.delete(id);
    counters.delete(id);
  }
  for (const { id, usage } of sandboxes) {
    if (!history.has(id)) past = past.then(() => recall(id, at));
    const before = counters.get(id);
    const samples = history.get(id) ?? [];
    const total = usage?.cpu_ms ?? null;
    // Two looks within a moment would make a spike of a rounding error.
    if (before && at - before.at < 900) continue;
    const cpu = total !== null && before ? (Math.max(0, total - before.cpu) / (at - before.at)) * 100 : null;
    if (total !== null) counters.set(id, { at, cpu: total });
    samples.push({ at, cpu, memory: usage?.memory_bytes ?? null });
    history.set(id, samples.filter((sample) => sample.at > at - KEPT_MS));
  }
}

/** One question after the other: many sandboxes at once must not keep a browser from asking anything else. */
let past: Promise<void> = Promise.resolve();

/** What the server has seen of a sandbox before this page did. A chart without it is a chart all the same. */
async function recall(id: string, until: number): Promise<void> {
  const told = await get<PastUsage>(`/api/sandboxes/${id}/usage`).catch(() => null);
  const samples = history.get(id);
  if (!told || !samples) return;
  const seen = told.samples.filter((sample) => sample.at_ms < until);
  const earlier = seen.map((sample, number) => {
    const before = seen[number - 1];
    const known = before && before.cpu_ms !== null && sample.cpu_ms !== null;
    const spent = known ? Math.max(0, sample.cpu_ms! - before.cpu_ms!) / (sample.at_ms - before.at_ms) : null;
    return { at: sample.at_ms, cpu: spent === null ? null : spent * 100, memory: sample.memory_bytes };
  });
  history.set(id, [...earlier, ...samples]);
}

export function samplesOf(id: string): Sample[] {
  return history.get(id) ?? [];
}

export interface Live {
  state: State | null;
  trouble: string | null;
}

export function useLive(all: boolean): Live {
  const [live, setLive] = useState<Live>({ state: null, trouble: null });
  useEffect(() => {
    const given = new AbortController();
    void follow(all, given.signal, setLive);
    return () => given.abort();
  }, [all]);
  return live;
}

async function follow(all: boolean, signal: AbortSignal, tell: (next: (live: Live) => Live) => void): Promise<void> {
  for (let wait = 1000; !signal.aborted; wait = Math.min(wait * 2, 15000)) {
    let said = "the server does not answer";
    try {
      for await (const { event, data } of events(await ask(`/api/live?all=${all}`, { signal }))) {
        wait = 1000;
        if (event === "state") {
          const state = data as State;
          remember(state.at_ms, state.sandboxes);
          tell(() => ({ state, trouble: null }));
        } else if (event === "trouble") {
          const { message } = (data as { error: Failure }).error;
          tell((live) => ({ ...live, trouble: message }));
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      said = words(error);
      if (error instanceof Trouble && error.kind === "denied") wait = 15000;
    }
    if (signal.aborted) return;
    tell((live) => ({ ...live, trouble: `${said}; trying again` }));
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}
