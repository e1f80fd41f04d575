// What was run: the last of all, and one with its output.

import { useEffect, useState } from "preact/hooks";
import { clock, moment, span } from "../format.ts";
import { get, send, words } from "../http.ts";
import { Action } from "../parts/action.tsx";
import { RunBadge } from "../parts/badge.tsx";
import { RunOutput } from "../parts/output.tsx";
import { toRun, toSandbox } from "../route.ts";
import type { Run, Session, State } from "../types.ts";

export function RunsView({ state }: { state: State | null }) {
  return (
    <>
      <div class="heading">
        <h1>Runs</h1>
      </div>
      {state === null ? (
        <p class="loading">Loading…</p>
      ) : (
        <RunTable runs={state.runs} empty="Nothing was run in the last minutes. Runs are kept for ten." withSandbox />
      )}
    </>
  );
}

export function RunTable({ runs, empty, withSandbox = false }: { runs: Run[]; empty: string; withSandbox?: boolean }) {
  if (runs.length === 0) return <p class="empty">{empty}</p>;
  return (
    <table class="rows runs">
      <thead>
        <tr>
          <th scope="col">Run</th>
          <th scope="col">Started</th>
          <th scope="col">Took</th>
          <th scope="col">How</th>
          {withSandbox && <th scope="col">Sandbox</th>}
        </tr>
      </thead>
      <tbody>
        {runs.map((run) => (
          <tr key={run.id}>
            <td>
              <a href={toRun(run.id)}>{run.title || run.id}</a>
            </td>
            <td>
              <time dateTime={run.started_at}>{clock(run.started_at)}</time>
            </td>
            <td>{run.usage ? span(run.usage.wall_ms) : "–"}</td>
            <td>
              <RunBadge run={run} />
            </td>
            {withSandbox && (
              <td>{run.sandbox_kept ? <a href={toSandbox(run.sandbox_id)}>{run.sandbox_id}</a> : "its own, gone with it"}</td>
            )}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

export function RunView({ id, session }: { id: string; session: Session }) {
  const [run, setRun] = useState<Run | null>(null);
  const [trouble, setTrouble] = useState<string | null>(null);
  useEffect(() => {
    const given = new AbortController();
    get<Run>(`/api/runs/${encodeURIComponent(id)}`, given.signal).then(setRun, (error: unknown) =>
      given.signal.aborted ? undefined : setTrouble(words(error)),
    );
    return () => given.abort();
  }, [id]);
  return (
    <>
      <p class="crumbs">
        <a href="#/runs">Runs</a>
      </p>
      <div class="heading">
        <h1 class="break">{run?.title || id}</h1>
        {run && <RunBadge run={run} />}
        <span class="space" />
        {run?.state === "running" && session.may.stop_runs && <StopRun id={id} onStopped={setRun} />}
      </div>
      {trouble && <p class="empty">{trouble}</p>}
      {run && (
        <p class="facts">
          <span>
            started <b>{moment(run.started_at)}</b>
          </span>
          <span>
            in{" "}
            {run.sandbox_kept ? <a href={toSandbox(run.sandbox_id)}>{run.sandbox_id}</a> : "a sandbox of its own, which ended with it"}
          </span>
        </p>
      )}
      {run && <RunOutput id={id} onRun={setRun} />}
    </>
  );
}

export function StopRun({ id, onStopped }: { id: string; onStopped?: (run: Run) => void }) {
  return (
    <Action
      class="danger"
      work={async () => {
        const run = await send<Run>("DELETE", `/api/runs/${encodeURIComponent(id)}`);
        onStopped?.(run);
      }}
    >
      Stop the run
    </Action>
  );
}
