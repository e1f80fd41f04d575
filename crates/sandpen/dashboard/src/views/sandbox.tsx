// One sandbox: what it is and uses, its runs, its files, a terminal in it.

import { useEffect, useState } from "preact/hooks";
import { moment, since, size } from "../format.ts";
import { get, words } from "../http.ts";
import { Confirmed } from "../parts/action.tsx";
import { Badge } from "../parts/badge.tsx";
import { UsageCharts } from "../parts/usage.tsx";
import { toSandbox } from "../route.ts";
import type { Sandbox, Session, State } from "../types.ts";
import { FilesView } from "./files.tsx";
import { RunTable } from "./runs.tsx";
import { stopSandbox } from "./sandboxes.tsx";
import { TerminalView } from "./terminal.tsx";

interface Properties {
  session: Session;
  state: State | null;
  id: string;
  part: "overview" | "files" | "terminal";
  path: string | null;
}

/** From the live state, or asked for where that does not have it: somebody else's, or one that is just being made. */
function useSandbox(state: State | null, id: string): { sandbox: Sandbox | null; trouble: string | null } {
  const live = state?.sandboxes.find((sandbox) => sandbox.id === id || sandbox.name === id) ?? null;
  const [asked, setAsked] = useState<{ sandbox: Sandbox | null; trouble: string | null }>({ sandbox: null, trouble: null });
  const isMissing = state !== null && live === null;
  useEffect(() => {
    if (!isMissing) return;
    const given = new AbortController();
    get<Sandbox>(`/api/sandboxes/${encodeURIComponent(id)}`, given.signal).then(
      (sandbox) => setAsked({ sandbox, trouble: null }),
      (error: unknown) => given.signal.aborted || setAsked({ sandbox: null, trouble: words(error) }),
    );
    return () => given.abort();
  }, [id, isMissing, state?.at_ms]);
  return live ? { sandbox: live, trouble: null } : asked;
}

export function SandboxView({ session, state, id, part, path }: Properties) {
  const { sandbox, trouble } = useSandbox(state, id);
  if (!sandbox) {
    return (
      <>
        <p class="crumbs">
          <a href="#/sandboxes">Sandboxes</a>
        </p>
        <h1 class="break">{id}</h1>
        {trouble ? <p class="empty">{trouble}</p> : <p class="loading">Loading…</p>}
        <OldRuns state={state} id={id} />
      </>
    );
  }
  const title = sandbox.name ?? sandbox.id;
  const tabs: [Properties["part"], string, boolean][] = [
    ["overview", "Overview", true],
    ["files", "Files", sandbox.own && session.may.read_files],
    ["terminal", "Terminal", sandbox.own && session.may.open_terminals],
  ];
  return (
    <>
      <p class="crumbs">
        <a href="#/sandboxes">Sandboxes</a>
      </p>
      <div class="heading">
        <h1 class="break">{title}</h1>
        <Badge tone={sandbox.running > 0 ? "busy" : "good"}>{sandbox.running > 0 ? `${sandbox.running} running` : sandbox.state}</Badge>
        <span class="space" />
        {session.may.stop && (
          <Confirmed
            label={`Stop ${title}`}
            question="Stop and lose its files?"
            work={async () => {
              await stopSandbox(sandbox.id);
              location.hash = "#/sandboxes";
            }}
          >
            Stop
          </Confirmed>
        )}
      </div>
      <nav class="tabs" aria-label="Parts of the sandbox">
        {tabs
          .filter(([, , isThere]) => isThere)
          .map(([name, label]) => (
            <a
              key={name}
              href={toSandbox(sandbox.id, name === "overview" ? undefined : name)}
              aria-current={part === name ? "page" : undefined}
            >
              {label}
            </a>
          ))}
      </nav>
      {part === "overview" && <Overview sandbox={sandbox} state={state} />}
      {part === "files" && <FilesView sandbox={sandbox} session={session} path={path ?? sandbox.work_directory} />}
      {part === "terminal" && <TerminalView key={sandbox.id} sandbox={sandbox} />}
    </>
  );
}

function Overview({ sandbox, state }: { sandbox: Sandbox; state: State | null }) {
  const { usage } = sandbox;
  const facts: [string, string][] = [
    ["Id", sandbox.id],
    ["Owner", sandbox.owner],
    ["Image", sandbox.image],
    ["Made", `${moment(sandbox.created_at)}${state ? ` (${since(sandbox.created_at, state.at_ms)} ago)` : ""}`],
    ["Ends", sandbox.expires_at ? `${moment(sandbox.expires_at)}, if nothing uses it` : "not while something runs"],
    ["Network", sandbox.network],
    ["Work directory", sandbox.work_directory],
    ["Outlives the server", sandbox.persistent ? "yes" : "no"],
    ["Processes", `${usage?.processes ?? "–"} of ${sandbox.processes}`],
    ["Files", `${usage?.disk_bytes == null ? "–" : size(usage.disk_bytes)} of ${size(sandbox.disk_bytes)}`],
  ];
  if (usage?.network) {
    const { connections, refused, bytes_in, bytes_out } = usage.network;
    facts.push(["Connections", `${connections}, ${refused} refused; ${size(bytes_in)} in, ${size(bytes_out)} out`]);
  }
  const runs = state?.runs.filter((run) => run.sandbox_id === sandbox.id) ?? [];
  return (
    <>
      <UsageCharts sandbox={sandbox} large />
      <dl class="table">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <h2>Runs</h2>
      {sandbox.own ? (
        <RunTable runs={runs} empty="Nothing was run in it in the last minutes." />
      ) : (
        <p class="empty">Runs and files are seen by the owner alone.</p>
      )}
    </>
  );
}

function OldRuns({ state, id }: { state: State | null; id: string }) {
  const runs = state?.runs.filter((run) => run.sandbox_id === id) ?? [];
  if (runs.length === 0) return null;
  return (
    <>
      <h2>Runs</h2>
      <RunTable runs={runs} empty="" />
    </>
  );
}
