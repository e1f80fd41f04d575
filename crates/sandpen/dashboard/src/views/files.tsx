// The files of a sandbox: look around, see, bring and take.

import { useEffect, useRef, useState } from "preact/hooks";
import { baseName, moment, size } from "../format.ts";
import { ask, get, send, words } from "../http.ts";
import { Action, Confirmed } from "../parts/action.tsx";
import { download } from "../parts/picture.tsx";
import { Preview } from "../parts/preview.tsx";
import { toFile } from "../route.ts";
import type { Entry, Sandbox, Session } from "../types.ts";

interface Listing {
  entries: Entry[];
  truncated: boolean;
}

function address(sandbox: Sandbox, path: string): string {
  return `/api/sandboxes/${encodeURIComponent(sandbox.id)}/files${path.split("/").map(encodeURIComponent).join("/")}`;
}

function below(directory: string, name: string): string {
  return directory === "/" ? `/${name}` : `${directory}/${name}`;
}

/** Large files are not held by the page: the server gives an address for them that is good for a while, to those who may write. */
async function take(sandbox: Sandbox, session: Session, path: string, name: string): Promise<void> {
  if (!session.may.write_files) return download(address(sandbox, path), name);
  const links = `/api/sandboxes/${encodeURIComponent(sandbox.id)}/links`;
  const { url } = await send<{ url: string }>("POST", links, { path, method: "GET", expires_s: 60 });
  const link = document.createElement("a");
  link.href = new URL(url, location.href).href;
  link.download = name;
  link.click();
}

const isDirectory = (entry: Entry) => entry.kind === "directory";

export function FilesView({ sandbox, session, path }: { sandbox: Sandbox; session: Session; path: string }) {
  const [listing, setListing] = useState<Listing | null>(null);
  const [trouble, setTrouble] = useState<string | null>(null);
  const [shown, setShown] = useState<Entry | null>(null);
  const [looks, setLooks] = useState(0);
  const [sent, setSent] = useState<string | null>(null);
  const [isOver, setOver] = useState(false);
  const picker = useRef<HTMLInputElement>(null);
  const again = () => setLooks((looks) => looks + 1);

  useEffect(() => {
    const given = new AbortController();
    setTrouble(null);
    get<Listing>(address(sandbox, path), given.signal).then(
      (listing) => {
        const order = (entry: Entry) => (isDirectory(entry) ? 0 : 1);
        listing.entries.sort((a, b) => order(a) - order(b) || a.name.localeCompare(b.name));
        setListing(listing);
      },
      (error: unknown) => given.signal.aborted || (setListing(null), setTrouble(words(error))),
    );
    return () => given.abort();
  }, [sandbox.id, path, looks]);

  useEffect(() => setShown(null), [path]);

  async function upload(chosen: FileList | null) {
    // A list that belongs to an input is emptied with it.
    const files = [...(chosen ?? [])];
    if (files.length === 0) return;
    setTrouble(null);
    try {
      for (const [number, file] of files.entries()) {
        setSent(`Uploading ${file.name} (${number + 1} of ${files.length})…`);
        await ask(address(sandbox, below(path, file.name)), { method: "PUT", body: file });
      }
      setSent(files.length === 1 ? `${files[0]!.name} is there.` : `${files.length} files are there.`);
    } catch (error) {
      setSent(null);
      setTrouble(words(error));
    }
    again();
  }

  const steps = path.split("/").filter(Boolean);
  return (
    <section
      class={isOver ? "files over" : "files"}
      aria-label="Files"
      onDragOver={(event) => session.may.write_files && (event.preventDefault(), setOver(true))}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault();
        setOver(false);
        if (session.may.write_files) void upload(event.dataTransfer?.files ?? null);
      }}
    >
      <div class="bar">
        <nav class="path" aria-label="Directory">
          <a href={toFile(sandbox.id, "/")} aria-label="The top directory">
            /
          </a>
          {steps.map((step, number) => (
            <span key={number}>
              <a
                href={toFile(sandbox.id, `/${steps.slice(0, number + 1).join("/")}`)}
                aria-current={number === steps.length - 1 ? "location" : undefined}
              >
                {step}
              </a>
              {number < steps.length - 1 && " /"}
            </span>
          ))}
        </nav>
        <button type="button" class="quiet" onClick={again}>
          Refresh
        </button>
        <Action
          class="quiet"
          work={() => download(`${address(sandbox, path)}?archive=zip`, `${baseName(path).replace(/^\/$/, "files")}.zip`)}
        >
          Download all
        </Action>
        {session.may.write_files && (
          <>
            <NewDirectory make={(name) => ask(`${address(sandbox, below(path, name))}?directory`, { method: "POST" })} done={again} />
            <button type="button" class="primary" onClick={() => picker.current?.click()}>
              Upload
            </button>
            <input
              ref={picker}
              class="unseen"
              type="file"
              multiple
              tabIndex={-1}
              aria-label="Files to upload"
              onChange={(event) => {
                void upload(event.currentTarget.files);
                event.currentTarget.value = "";
              }}
            />
          </>
        )}
      </div>
      <p class={sent ? "said" : "said none"} role="status">
        {sent}
      </p>
      {trouble && (
        <p class="trouble" role="alert">
          {trouble}
        </p>
      )}
      <div class={shown ? "browse with-preview" : "browse"}>
        {listing && (
          <table class="rows">
            <thead>
              <tr>
                <th scope="col">Name</th>
                <th scope="col" class="number">
                  Size
                </th>
                <th scope="col" class="modified">
                  Changed
                </th>
                <th scope="col">
                  <span class="unseen">What to do</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {listing.entries.map((entry) => (
                <tr key={entry.name} class={shown?.name === entry.name ? "chosen" : undefined}>
                  <td class="name">
                    {isDirectory(entry) ? (
                      <a href={toFile(sandbox.id, below(path, entry.name))}>{entry.name}/</a>
                    ) : (
                      <button type="button" class="link" onClick={() => setShown(entry)}>
                        {entry.name}
                      </button>
                    )}
                  </td>
                  <td class="number">{isDirectory(entry) ? "" : size(entry.bytes)}</td>
                  <td class="modified">{entry.modified === null ? "" : moment(entry.modified)}</td>
                  <td class="acts">
                    {!isDirectory(entry) && (
                      <Action
                        class="quiet small"
                        label={`Download ${entry.name}`}
                        work={() => take(sandbox, session, below(path, entry.name), entry.name)}
                      >
                        Download
                      </Action>
                    )}
                    {session.may.delete_files && (
                      <Confirmed
                        label={`Delete ${entry.name}`}
                        question="Delete?"
                        work={async () => {
                          await ask(address(sandbox, below(path, entry.name)), { method: "DELETE" });
                          if (shown?.name === entry.name) setShown(null);
                          again();
                        }}
                      >
                        Delete
                      </Confirmed>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        )}
        {listing?.entries.length === 0 && <p class="empty">Nothing is here. Drop files on this page to bring them.</p>}
        {listing?.truncated && <p class="hint">There are more than are listed.</p>}
        {!listing && !trouble && <p class="loading">Loading…</p>}
        {shown && (
          <Preview
            key={`${path}/${shown.name}`}
            address={address(sandbox, below(path, shown.name))}
            entry={shown}
            onClose={() => setShown(null)}
          />
        )}
      </div>
    </section>
  );
}

function NewDirectory({ make, done }: { make: (name: string) => Promise<unknown>; done: () => void }) {
  const [name, setName] = useState<string | null>(null);
  const [trouble, setTrouble] = useState<string | null>(null);
  if (name === null) {
    return (
      <button type="button" class="quiet" onClick={() => setName("")}>
        New directory
      </button>
    );
  }
  async function act(event: Event) {
    event.preventDefault();
    try {
      await make(name!);
      setName(null);
      setTrouble(null);
      done();
    } catch (error) {
      setTrouble(words(error));
    }
  }
  return (
    <form class="inline" onSubmit={act}>
      <input
        aria-label="Name of the new directory"
        ref={(element) => element?.focus()}
        value={name}
        required
        onInput={(event) => setName(event.currentTarget.value)}
        onKeyDown={(event) => event.key === "Escape" && setName(null)}
      />
      <button type="submit">Make</button>
      {trouble && (
        <span class="trouble" role="alert">
          {trouble}
        </span>
      )}
    </form>
  );
}
