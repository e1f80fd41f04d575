// A button whose work takes a moment and may fail, and one that asks before it does something that cannot be undone.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { words } from "../http.ts";

interface Properties {
  work: () => Promise<unknown>;
  children: ComponentChildren;
  class?: string;
  label?: string;
}

export function Action({ work, children, class: kind, label }: Properties) {
  const [busy, setBusy] = useState(false);
  const [trouble, setTrouble] = useState<string | null>(null);
  const here = useRef(true);
  useEffect(() => () => void (here.current = false), []);

  async function act() {
    setBusy(true);
    setTrouble(null);
    try {
      await work();
    } catch (error) {
      if (here.current) setTrouble(words(error));
    } finally {
      if (here.current) setBusy(false);
    }
  }

  return (
    <>
      <button type="button" class={kind} disabled={busy} aria-busy={busy} aria-label={label} onClick={act}>
        {children}
      </button>
      {trouble && (
        <span class="trouble" role="alert">
          {trouble}
        </span>
      )}
    </>
  );
}

/** The first press asks, the second does. Leaving the button or Escape takes the question back. */
export function Confirmed({ work, children, label, question }: Properties & { question: string }) {
  const [asking, setAsking] = useState(false);
  const [trouble, setTrouble] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const here = useRef(true);
  useEffect(() => () => void (here.current = false), []);

  async function press() {
    if (!asking) {
      setAsking(true);
      return;
    }
    setAsking(false);
    setBusy(true);
    setTrouble(null);
    try {
      await work();
    } catch (error) {
      if (here.current) setTrouble(words(error));
    } finally {
      if (here.current) setBusy(false);
    }
  }

  return (
    <>
      <button
        type="button"
        class={asking ? "danger" : "quiet danger"}
        disabled={busy}
        aria-busy={busy}
        aria-label={asking ? `${question} Press again to do it.` : label}
        onClick={press}
        onBlur={() => setAsking(false)}
        onKeyDown={(event) => event.key === "Escape" && setAsking(false)}
      >
        {busy ? "Working…" : asking ? question : children}
      </button>
      {trouble && (
        <span class="trouble" role="alert">
          {trouble}
        </span>
      )}
    </>
  );
}
