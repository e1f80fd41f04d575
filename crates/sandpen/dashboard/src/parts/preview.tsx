// The beginning of a file: a picture as a picture, everything else as its text. Nothing of it is ever run or laid out.

import { useEffect, useRef, useState } from "preact/hooks";
import { size } from "../format.ts";
import { ask, words } from "../http.ts";
import type { Entry } from "../types.ts";
import { Picture } from "./picture.tsx";

/** Of text that is shown. */
const BEGINNING = 256 * 1024;
/** Of a picture that is shown. */
const LARGEST = 16 << 20;

const KINDS: Record<string, string> = {
  png: "image/png",
  jpg: "image/jpeg",
  jpeg: "image/jpeg",
  gif: "image/gif",
  webp: "image/webp",
  svg: "image/svg+xml",
};

export function Preview({ address, entry, onClose }: { address: string; entry: Entry; onClose: () => void }) {
  const heading = useRef<HTMLHeadingElement>(null);
  const kind = KINDS[entry.name.split(".").at(-1)?.toLowerCase() ?? ""];
  useEffect(() => heading.current?.focus(), []);
  return (
    <aside class="preview" aria-label={`Preview of ${entry.name}`}>
      <div class="preview-head">
        <h2 ref={heading} tabIndex={-1}>
          {entry.name}
        </h2>
        <button type="button" class="quiet" onClick={onClose} aria-label="Close the preview">
          Close
        </button>
      </div>
      {entry.kind !== "file" && entry.kind !== "regular" && entry.kind !== "link" ? (
        <p class="hint">This is no file to look into.</p>
      ) : kind && entry.bytes <= LARGEST ? (
        <Picture address={address} kind={kind} name={entry.name} />
      ) : (
        <Text address={address} bytes={entry.bytes} />
      )}
    </aside>
  );
}

function Text({ address, bytes }: { address: string; bytes: number }) {
  const [text, setText] = useState<string | null>(null);
  const [trouble, setTrouble] = useState<string | null>(null);
  useEffect(() => {
    if (bytes === 0) {
      setText("");
      return;
    }
    const given = new AbortController();
    ask(address, { signal: given.signal, headers: { range: `bytes=0-${BEGINNING - 1}` } })
      .then((answer) => answer.arrayBuffer())
      .then(
        (whole) => {
          const beginning = new Uint8Array(whole).subarray(0, BEGINNING);
          if (beginning.includes(0)) setTrouble("This is not text.");
          else setText(new TextDecoder().decode(beginning));
        },
        (error: unknown) => given.signal.aborted || setTrouble(words(error)),
      );
    return () => given.abort();
  }, [address]);
  if (trouble) return <p class="hint">{trouble}</p>;
  if (text === null) return <p class="loading">Loading…</p>;
  return (
    <>
      <pre tabIndex={0} aria-label="Contents">
        {text}
      </pre>
      {bytes > BEGINNING && <p class="hint">The first {size(BEGINNING)} of {size(bytes)}.</p>}
    </>
  );
}
