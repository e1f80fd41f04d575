// A terminal in a sandbox: output is a stream, what is typed is posted in order.

import { useEffect, useRef, useState } from "preact/hooks";
import { ask, bytes, events, send, words } from "../http.ts";
import type { Emulator, Size } from "../terminal.ts";
import { isDark } from "../theme.ts";
import type { Sandbox } from "../types.ts";

declare const TERMINAL_SCRIPT: string;
declare const TERMINAL_STYLE: string;

interface Ended {
  state: string;
  exit_code: number | null;
}

let loaded: Promise<typeof import("../terminal.ts")> | null = null;

function load(): Promise<typeof import("../terminal.ts")> {
  loaded ??= new Promise((resolve, reject) => {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = TERMINAL_STYLE;
    style.onload = () => import(TERMINAL_SCRIPT).then(resolve, reject);
    style.onerror = () => reject(new Error("the terminal cannot be loaded"));
    document.head.append(style);
  });
  return loaded;
}

/** One request at a time, with all that was typed meanwhile in the next. */
class Keyboard {
  private waiting = "";
  private sending = false;

  constructor(
    private readonly address: string,
    private readonly failed: (error: unknown) => void,
  ) {}

  type(text: string): void {
    this.waiting += text;
    if (!this.sending) void this.send();
  }

  private async send(): Promise<void> {
    this.sending = true;
    try {
      while (this.waiting) {
        const text = this.waiting.slice(0, 16_000);
        this.waiting = this.waiting.slice(text.length);
        await ask(this.address, { method: "POST", body: new TextEncoder().encode(text) });
      }
    } catch (error) {
      this.waiting = "";
      this.failed(error);
    } finally {
      this.sending = false;
    }
  }
}

export function TerminalView({ sandbox }: { sandbox: Sandbox }) {
  const parent = useRef<HTMLDivElement>(null);
  const after = useRef<HTMLButtonElement>(null);
  const [attempt, setAttempt] = useState(0);
  const [said, setSaid] = useState("Opening…");
  const [isOver, setOver] = useState(false);

  useEffect(() => {
    const given = new AbortController();
    let emulator: Emulator | null = null;
    setOver(false);
    setSaid("Opening…");
    (async () => {
      const { open } = await load();
      if (given.signal.aborted || !parent.current) return;
      emulator = open(parent.current, isDark());
      const size = emulator.size();
      const answer = await ask(`/api/sandboxes/${encodeURIComponent(sandbox.id)}/terminals`, {
        method: "POST",
        body: JSON.stringify(size),
        headers: { "content-type": "application/json" },
        signal: given.signal,
      });
      for await (const { event, data } of events(answer)) {
        if (event === "opened") begin(emulator, size, (data as { terminal: string }).terminal);
        else if (event === "output") emulator.write(bytes((data as { base64: string }).base64));
        else if (event === "ended") {
          const { state, exit_code } = data as Ended;
          finish(exit_code === null ? `It ended: ${state.replaceAll("_", " ")}.` : `The shell ended with ${exit_code}.`);
          return;
        }
      }
      finish("The connection broke off, and the terminal ended with it.");
    })().catch((error: unknown) => given.signal.aborted || finish(words(error)));

    function begin(emulator: Emulator, size: Size, id: string) {
      const address = `/api/terminals/${encodeURIComponent(id)}`;
      const keyboard = new Keyboard(`${address}/input`, (error) => setSaid(words(error)));
      emulator.onInput((text) => keyboard.type(text));
      let last = size;
      emulator.onSize((size) => {
        if (size.rows === last.rows && size.columns === last.columns) return;
        last = size;
        send("POST", `${address}/size`, size).catch(() => {});
      });
      setSaid("Open. Ctrl+Shift+Escape leaves it with the keyboard.");
      emulator.focus();
    }

    function finish(why: string) {
      setSaid(why);
      setOver(true);
    }

    const leave = () => after.current?.focus();
    parent.current?.addEventListener("leave", leave);
    return () => {
      given.abort();
      emulator?.close();
    };
  }, [sandbox.id, attempt]);

  return (
    <section class="terminal" aria-label="Terminal">
      <div class="screen" ref={parent} key={attempt} />
      <div class="under">
        <p role="status">{said}</p>
        <button ref={after} type="button" class="quiet" onClick={() => setAttempt(attempt + 1)}>
          {isOver ? "Open another" : "Start over"}
        </button>
      </div>
    </section>
  );
}
