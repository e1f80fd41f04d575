// The audit trail, the newest line first.

import { useEffect, useState } from "preact/hooks";
import { moment, spoken } from "../format.ts";
import { get, words } from "../http.ts";
import { toSandbox } from "../route.ts";
import type { AuditLine, AuditPage, Session } from "../types.ts";

/** Shown in columns of their own, or of no use to a reader. */
const COLUMNS = ["number", "time", "owner", "sandbox", "event", "previous"];

function details(line: AuditLine): string {
  return Object.entries(line)
    .filter(([name, value]) => !COLUMNS.includes(name) && value !== null && value !== "")
    .map(([name, value]) => `${spoken(name)}: ${typeof value === "string" ? value : JSON.stringify(value)}`)
    .join(" · ");
}

export function AuditView({ session }: { session: Session }) {
  const [lines, setLines] = useState<(AuditLine | null)[]>([]);
  const [older, setOlder] = useState<number | null>(null);
  const [isUnbroken, setUnbroken] = useState(true);
  const [trouble, setTrouble] = useState<string | null>(null);
  const [filter, setFilter] = useState("");
  const [isLoaded, setLoaded] = useState(false);

  async function read(before: number | null) {
    setTrouble(null);
    try {
      const page = await get<AuditPage>(before === null ? "/api/audit" : `/api/audit?before=${before}`);
      setLines((lines) => (before === null ? page.lines : [...lines, ...page.lines]));
      setOlder(page.older);
      setUnbroken((was) => (before === null ? page.unbroken : was && page.unbroken));
      setLoaded(true);
    } catch (error) {
      setTrouble(words(error));
    }
  }

  useEffect(() => {
    if (session.audit_trail) void read(null);
  }, []);

  const wanted = filter.trim().toLowerCase();
  const shown = lines.filter((line) => !wanted || JSON.stringify(line).toLowerCase().includes(wanted));
  return (
    <>
      <div class="heading">
        <h1>Audit trail</h1>
        {session.audit_trail && (
          <>
            <input
              type="search"
              aria-label="Show only lines with these words"
              placeholder="filter"
              value={filter}
              onInput={(event) => setFilter(event.currentTarget.value)}
            />
            <button type="button" onClick={() => read(null)}>
              Refresh
            </button>
          </>
        )}
      </div>
      {!session.audit_trail && (
        <div class="empty">
          <p>This server keeps no audit trail.</p>
          <p class="hint">
            Start it with <code>--audit-log FILE</code>.
          </p>
        </div>
      )}
      {trouble && (
        <p class="trouble" role="alert">
          {trouble}
        </p>
      )}
      {isLoaded && (
        <p class={isUnbroken ? "hint" : "trouble"} role="status">
          {isUnbroken
            ? `${shown.length} lines; each has the digest of the one before it.`
            : "Lines were changed or taken out: run sandpen audit verify."}
        </p>
      )}
      {shown.length > 0 && (
        <table class="rows audit">
          <thead>
            <tr>
              <th scope="col" class="number">
                No.
              </th>
              <th scope="col">Time</th>
              <th scope="col">Owner</th>
              <th scope="col">Event</th>
              <th scope="col">Sandbox</th>
              <th scope="col">Details</th>
            </tr>
          </thead>
          <tbody>
            {shown.map((line, place) =>
              line === null ? (
                <tr key={`gap-${place}`}>
                  <td colSpan={6} class="trouble">
                    a line that is none of ours
                  </td>
                </tr>
              ) : (
                <tr key={line.number}>
                  <td class="number">{line.number}</td>
                  <td>
                    <time dateTime={line.time}>{moment(line.time)}</time>
                  </td>
                  <td>{line.owner ?? "–"}</td>
                  <td>
                    <b>{spoken(line.event)}</b>
                  </td>
                  <td>{line.sandbox ? <a href={toSandbox(line.sandbox)}>{line.sandbox}</a> : "–"}</td>
                  <td class="details">{details(line)}</td>
                </tr>
              ),
            )}
          </tbody>
        </table>
      )}
      {older !== null && (
        <button type="button" onClick={() => read(older)}>
          Older lines
        </button>
      )}
    </>
  );
}
