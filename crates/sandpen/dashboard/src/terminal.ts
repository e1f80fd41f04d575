// The emulator, in a file of its own because it is large. Knows nothing of the server.

import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";

export interface Size {
  rows: number;
  columns: number;
}

export interface Emulator {
  size(): Size;
  write(bytes: Uint8Array): void;
  say(text: string): void;
  onInput(listener: (text: string) => void): void;
  onSize(listener: (size: Size) => void): void;
  focus(): void;
  close(): void;
}

/** Our policy lets no page write styles into itself, which the emulator does. A sheet that is constructed says the same, and
 *  what stands for the element in the tree is one that does nothing. */
function withConstructedSheets<T>(work: () => T): T {
  const native = document.createElement;
  document.createElement = function (this: Document, name: string, options?: ElementCreationOptions) {
    if (name !== "style") return native.call(this, name, options);
    const standIn = native.call(this, "template");
    const sheet = new CSSStyleSheet();
    document.adoptedStyleSheets.push(sheet);
    Object.defineProperty(standIn, "textContent", { set: (text: string) => sheet.replaceSync(text) });
    standIn.remove = () => {
      document.adoptedStyleSheets = document.adoptedStyleSheets.filter((other) => other !== sheet);
      Element.prototype.remove.call(standIn);
    };
    return standIn;
  } as typeof document.createElement;
  try {
    return work();
  } finally {
    document.createElement = native;
  }
}

/** The emulator colours by style attributes, which the policy refuses as well. The same by way of the object model it allows. */
function colourByObjects(): void {
  const native = Element.prototype.setAttribute;
  HTMLSpanElement.prototype.setAttribute = function (name, value) {
    if (name === "style") this.style.cssText = value;
    else native.call(this, name, value);
  };
}

colourByObjects();

export function open(parent: HTMLElement, dark: boolean): Emulator {
  const terminal = new Terminal({
    fontFamily: "ui-monospace, 'SF Mono', 'Cascadia Mono', 'DejaVu Sans Mono', Menlo, Consolas, monospace",
    fontSize: 13,
    cursorBlink: true,
    screenReaderMode: true,
    scrollback: 5000,
    theme: dark
      ? { background: "#0d1417", foreground: "#dfe7ea", cursor: "#5eead4", selectionBackground: "#2f5258" }
      : { background: "#ffffff", foreground: "#1b2a2f", cursor: "#0f766e", selectionBackground: "#bfe3df" },
    minimumContrastRatio: 4.5,
  });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  withConstructedSheets(() => terminal.open(parent));
  fit.fit();
  const observer = new ResizeObserver(() => fit.fit());
  observer.observe(parent);
  // Programs would keep the keyboard for themselves; Ctrl+Shift+Escape is the way out.
  terminal.attachCustomKeyEventHandler((event) => {
    if (event.type !== "keydown" || event.key !== "Escape" || !event.ctrlKey || !event.shiftKey) return true;
    parent.dispatchEvent(new CustomEvent("leave", { bubbles: true }));
    return false;
  });
  return {
    size: () => ({ rows: terminal.rows, columns: terminal.cols }),
    write: (bytes) => terminal.write(bytes),
    say: (text) => terminal.write(`\r\n\x1b[2m${text}\x1b[0m\r\n`),
    onInput: (listener) => void terminal.onData(listener),
    onSize: (listener) => void terminal.onResize(({ rows, cols }) => listener({ rows, columns: cols })),
    focus: () => terminal.focus(),
    close: () => {
      observer.disconnect();
      terminal.dispose();
    },
  };
}
