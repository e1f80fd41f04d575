// The output of a run as it comes, then what it made.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { baseName, size, span, spoken } from "../format.ts";
import { ask, bytes, events, words } from "../http.ts";
import type { Artifact, Run } from "../types.ts";
import { Action } from "./action.tsx";
import { RunBadge } from "./badge.tsx";
import { download, isPicture, Picture } from "./picture.tsx";

interface Piece {
  stream: "stdout" | "stderr" | "note";
  text: string;
}

/** Characters that are shown; the server keeps no more of each stream. */
const MOST = 1_000_000;

/** Colours and cursor movements mean nothing here. */
const ESCAPES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[@-Z\\-_])/g;

function add(pieces: Piece[], next: Piece): Piece[] {
  const last = pieces.at(-1);
  const joined =
    last?.stream === next.stream ? [...pieces.slice(0, -1), { ...last, text: last.text + next.text }] : [...pieces, next];
  let total = joined.reduce((sum, piece) => sum + piece.text.length, 0);
  while (total > MOST && joined.length > 0) {
    const first = joined[0]!;
    const cut = Math.min(first.text.length, total - MOST);
    total -= cut;
    if (cut === first.text.length) joined.shift();
    else joined[0] = { ...first, text: first.text.slice(cut) };
  }
  return joined;
}

export function RunOutput({ id, onRun }: { id: string; onRun?: (run: Run) => void }) {
  const [pieces, setPieces] = useState<Piece[]>([]);
  const [ended, setEnded] = useState<Run | null>(null);
  const [trouble, setTrouble] = useState<string | null>(null);
  const log = useRef<HTMLPreElement>(null);
  const sticks = useRef(true);

  useEffect(() => {
    const given = new AbortController();
    const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
    setPieces([]);
    setEnded(null);
    setTrouble(null);
    (async () => {
      const answer = await ask(`/api/runs/${encodeURIComponent(id)}/stream`, { signal: given.signal });
      for await (const { event, data } of events(answer)) {
        if (event === "output") {
          const said = data as { stream: "stdout" | "stderr"; base64: string; skipped: number };
          const text = decoders[said.stream].decode(bytes(said.base64), { stream: true }).replace(ESCAPES, "");
          setPieces((pieces) => {
            const before = said.skipped ? add(pieces, { stream: "note", text: `\n… ${size(said.skipped)} left out …\n` }) : pieces;
            return add(before, { stream: said.stream, text });
          });
        } else if (event === "ended") {
          setEnded(data as Run);
          onRun?.(data as Run);
          return;
        }
      }
      setTrouble("the stream broke off; load the page again to go on");
    })().catch((error: unknown) => given.signal.aborted || setTrouble(words(error)));
    return () => given.abort();
  }, [id]);

  useLayoutEffect(() => {
    const element = log.current;
    if (element && sticks.current) element.scrollTop = element.scrollHeight;
  }, [pieces]);

  return (
    <section class="output" aria-label="Output">
      <pre
        ref={log}
        tabIndex={0}
        role="log"
        aria-label="What the program writes"
        aria-live="off"
        onScroll={({ currentTarget: at }) => {
          sticks.current = at.scrollHeight - at.scrollTop - at.clientHeight < 24;
        }}
      >
        {pieces.map((piece, number) => (
          <span key={number} class={piece.stream}>
            {piece.text}
          </span>
        ))}
        {pieces.length === 0 && <span class="note">{ended ? "It wrote nothing." : "Nothing yet."}</span>}
      </pre>
      <p class="ending" role="status">
        {ended ? <Ending run={ended} /> : trouble ? null : "Running…"}
      </p>
      {trouble && (
        <p class="trouble" role="alert">
          {trouble}
        </p>
      )}
      {ended && <Made run={ended} />}
    </section>
  );
}

function Ending({ run }: { run: Run }) {
  return (
    <>
      <RunBadge run={run} />
      {run.error && <span class="trouble">{[run.error.message, run.error.hint].filter(Boolean).join(": ")}</span>}
      {run.signal !== null && <span>by signal {run.signal}</span>}
      {run.usage && (
        <span>
          {span(run.usage.wall_ms)}, {span(run.usage.cpu_ms)} of CPU, {size(run.usage.peak_memory_bytes)} of memory
        </span>
      )}
    </>
  );
}

function Made({ run }: { run: Run }) {
  if (run.artifacts.length === 0) return null;
  const address = (artifact: Artifact) =>
    `/api/runs/${encodeURIComponent(run.id)}/artifact?path=${encodeURIComponent(artifact.path)}`;
  const pictures = run.artifacts.filter((artifact) => isPicture(artifact.mime_type));
  return (
    <section class="made" aria-label="Files that the run made">
      <h2>Files</h2>
      {pictures.map((artifact) => (
        <Picture key={artifact.path} address={address(artifact)} kind={artifact.mime_type} name={baseName(artifact.path)} />
      ))}
      <ul class="files-made">
        {run.artifacts.map((artifact) => (
          <li key={artifact.path}>
            <code>{artifact.path}</code> <small>{size(artifact.bytes)}</small>{" "}
            <Action
              class="quiet small"
              label={`Download ${baseName(artifact.path)}`}
              work={() => download(address(artifact), baseName(artifact.path))}
            >
              Download
            </Action>
          </li>
        ))}
      </ul>
      {run.artifacts_left_out > 0 && <p class="hint">{spoken(`and ${run.artifacts_left_out} more`)}</p>}
    </section>
  );
}
