// Where somebody is, in the part of the address that the server does not see.

import { useEffect, useState } from "preact/hooks";

export type Route =
  | { view: "sandboxes" }
  | { view: "sandbox"; id: string; part: "overview" | "files" | "terminal"; path: string | null }
  | { view: "playground" }
  | { view: "runs" }
  | { view: "run"; id: string }
  | { view: "audit" };

export function parse(hash: string): Route {
  const [view, id, part, ...rest] = hash.replace(/^#\/?/, "").split("/").map(decoded);
  switch (view) {
    case "sandboxes":
      if (!id) return { view };
      if (part === "files") return { view: "sandbox", id, part, path: rest.length ? `/${rest.join("/")}` : null };
      return { view: "sandbox", id, part: part === "terminal" ? part : "overview", path: null };
    case "runs":
      return id ? { view: "run", id } : { view };
    case "playground":
    case "audit":
      return { view };
    default:
      return { view: "sandboxes" };
  }
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function toSandbox(id: string, part?: "files" | "terminal"): string {
  return `#/sandboxes/${encodeURIComponent(id)}${part ? `/${part}` : ""}`;
}

export function toFile(id: string, path: string): string {
  return `${toSandbox(id, "files")}${path.split("/").map(encodeURIComponent).join("/")}`;
}

export function toRun(id: string): string {
  return `#/runs/${encodeURIComponent(id)}`;
}

export function useRoute(): Route {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return parse(hash);
}
