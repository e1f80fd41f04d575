// Pictures that code has made. They are shown as pictures or not at all: what is in them is nobody's whom we trust.

import { useEffect, useState } from "preact/hooks";
import { ask, words } from "../http.ts";

/** An image element runs nothing of these, not of SVG either. */
const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml"];

export function isPicture(kind: string): boolean {
  return PICTURES.includes(kind);
}

export function Picture({ address, kind, name }: { address: string; kind: string; name: string }) {
  const [shown, setShown] = useState<string | null>(null);
  const [trouble, setTrouble] = useState<string | null>(null);
  useEffect(() => {
    const given = new AbortController();
    let made: string | null = null;
    ask(address, { signal: given.signal })
      .then((answer) => answer.arrayBuffer())
      .then((bytes) => {
        if (given.signal.aborted || !isPicture(kind)) return;
        made = URL.createObjectURL(new Blob([bytes], { type: kind }));
        setShown(made);
      })
      .catch((error: unknown) => given.signal.aborted || setTrouble(words(error)));
    return () => {
      given.abort();
      if (made) URL.revokeObjectURL(made);
    };
  }, [address, kind]);
  if (trouble) return <p class="trouble">{trouble}</p>;
  if (!shown) return <p class="loading">Loading {name}…</p>;
  return <img class="picture" src={shown} alt={name} onError={() => setTrouble(`${name} is not a picture`)} />;
}

/** A file from the server to the reader's own disk. */
export async function download(address: string, name: string): Promise<void> {
  const answer = await ask(address);
  const made = URL.createObjectURL(new Blob([await answer.arrayBuffer()], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = made;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(made), 10_000);
}
