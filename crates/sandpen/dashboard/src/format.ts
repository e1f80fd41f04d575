// Numbers and times as people read them.

export function size(bytes: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${unit === 0 || bytes >= 100 ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
}

export function span(milliseconds: number): string {
  const seconds = Math.max(0, milliseconds) / 1000;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.floor(seconds)} s`;
  const pair = (large: number, one: string, small: number, other: string) =>
    small ? `${large} ${one} ${small} ${other}` : `${large} ${one}`;
  if (seconds < 3600) return pair(Math.floor(seconds / 60), "min", Math.floor(seconds % 60), "s");
  if (seconds < 86400) return pair(Math.floor(seconds / 3600), "h", Math.floor((seconds % 3600) / 60), "min");
  return pair(Math.floor(seconds / 86400), "d", Math.floor((seconds % 86400) / 3600), "h");
}

export function since(time: string, now: number): string {
  const seconds = Math.max(0, Math.floor((now - Date.parse(time)) / 1000));
  return seconds < 60 ? `${seconds} s` : span(seconds * 1000);
}

export function clock(time: string | number): string {
  return new Date(time).toLocaleTimeString([], { hour12: false });
}

export function moment(time: string | number): string {
  return new Date(time).toLocaleString([], { dateStyle: "medium", timeStyle: "medium", hour12: false });
}

export function percent(share: number): string {
  return `${share >= 10 || share === 0 ? Math.round(share) : share.toFixed(1)} %`;
}

export function baseName(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1) || path;
}

/** Words of the API, with spaces. */
export function spoken(word: string): string {
  return word.replaceAll("_", " ");
}
