// All sandboxes at a glance, live.

import { useState } from "preact/hooks";
import { since } from "../format.ts";
import { send, words } from "../http.ts";
import { Confirmed } from "../parts/action.tsx";
import { Badge } from "../parts/badge.tsx";
import { UsageCharts } from "../parts/usage.tsx";
import { toSandbox } from "../route.ts";
import type { Sandbox, Session, State } from "../types.ts";

interface Properties {
  session: Session;
  state: State | null;
  all: boolean;
  setAll: (all: boolean) => void;
}

export function SandboxesView({ session, state, all, setAll }: Properties) {
  const sandboxes = state?.sandboxes ?? [];
  return (
    <>
      <div class="heading">
        <h1>Sandboxes</h1>
        {session.may.see_all && (
          <label class="check">
            <input type="checkbox" checked={all} onChange={(event) => setAll(event.currentTarget.checked)} />
            of all owners
          </label>
        )}
        {session.may.create && <NewSandbox />}
      </div>
      {state === null ? (
        <p class="loading">Loading…</p>
      ) : sandboxes.length === 0 ? (
        <div class="empty">
          <p>There are no sandboxes now.</p>
          <p class="hint">They appear here when a client makes one; a run in a fresh sandbox shows up for as long as it takes.</p>
        </div>
      ) : (
        <ul class="cards" aria-label="Sandboxes">
          {[...sandboxes].reverse().map((sandbox) => (
            <Card key={sandbox.id} sandbox={sandbox} now={state.at_ms} session={session} />
          ))}
        </ul>
      )}
    </>
  );
}

export function stopSandbox(id: string): Promise<unknown> {
  return send("DELETE", `/api/sandboxes/${encodeURIComponent(id)}`);
}

function Card({ sandbox, now, session }: { sandbox: Sandbox; now: number; session: Session }) {
  const title = sandbox.name ?? sandbox.id;
  return (
    <li class="card">
      <div class="card-head">
        <h2>
          <a href={toSandbox(sandbox.id)}>{title}</a>
        </h2>
        {sandbox.running > 0 ? (
          <Badge tone="busy">{sandbox.running} running</Badge>
        ) : (
          <Badge tone={sandbox.state === "live" ? "good" : "plain"}>{sandbox.state}</Badge>
        )}
      </div>
      <p class="facts">
        {sandbox.name && <code>{sandbox.id}</code>}
        <span>
          image <b>{sandbox.image}</b>
        </span>
        <span>
          age <b>{since(sandbox.created_at, now)}</b>
        </span>
        <span>
          owner <b>{sandbox.owner}</b>
        </span>
        {sandbox.network !== "none" && (
          <span>
            network <b>{sandbox.network}</b>
          </span>
        )}
      </p>
      <UsageCharts sandbox={sandbox} />
      <div class="card-foot">
        {sandbox.own && session.may.open_terminals && (
          <a class="button quiet" href={toSandbox(sandbox.id, "terminal")} aria-label={`Terminal in ${title}`}>
            Terminal
          </a>
        )}
        {sandbox.own && session.may.read_files && (
          <a class="button quiet" href={toSandbox(sandbox.id, "files")} aria-label={`Files of ${title}`}>
            Files
          </a>
        )}
        <span class="space" />
        {session.may.stop && (
          <Confirmed label={`Stop ${title}`} question="Stop and lose its files?" work={() => stopSandbox(sandbox.id)}>
            Stop
          </Confirmed>
        )}
      </div>
    </li>
  );
}

function NewSandbox() {
  const [busy, setBusy] = useState(false);
  const [name, setName] = useState("");
  const [trouble, setTrouble] = useState<string | null>(null);

  async function make(event: Event) {
    event.preventDefault();
    setBusy(true);
    setTrouble(null);
    try {
      const made = await send<Sandbox>("POST", "/api/sandboxes", name.trim() ? { name: name.trim() } : {});
      location.hash = toSandbox(made.id);
    } catch (error) {
      setTrouble(words(error));
      setBusy(false);
    }
  }

  return (
    <form class="inline new" onSubmit={make}>
      <label class="unseen" for="new-name">
        Name of the new sandbox
      </label>
      <input
        id="new-name"
        placeholder="name (optional)"
        value={name}
        autocomplete="off"
        spellcheck={false}
        onInput={(event) => setName(event.currentTarget.value)}
      />
      <button type="submit" class="primary" disabled={busy} aria-busy={busy}>
        New sandbox
      </button>
      {trouble && (
        <span class="trouble" role="alert">
          {trouble}
        </span>
      )}
    </form>
  );
}
