// Numbers, sizes and times as people read them. An unknown value is "unknown", never 0.
const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
export const UNKNOWN = "unknown";
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export const number = (value) => (isNumber(value) ? plain.format(value) : UNKNOWN);
export const share = (value) => (isNumber(value) ? `${plain.format(value * 100)} %` : UNKNOWN);

export function bytes(value) {
  if (!isNumber(value)) return UNKNOWN;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  for (; value >= 1000 && unit < units.length - 1; unit++) value /= 1000;
  return `${plain.format(value)} ${units[unit]}`;
}

export function duration(seconds) {
  if (!isNumber(seconds)) return UNKNOWN;
  if (seconds < 1) return `${plain.format(seconds * 1000)} ms`;
  for (const [unit, size] of [["d", 172800], ["h", 7200], ["min", 120]]) {
    if (seconds >= size) return `${plain.format(seconds / { d: 86400, h: 3600, min: 60 }[unit])} ${unit}`;
  }
  return `${plain.format(seconds)} s`;
}

// 03:02:11, with the date if that is not today; empty for 0.
export function clock(ms) {
  if (!ms) return "";
  const time = new Date(ms);
  const text = time.toLocaleTimeString("en-GB");
  return time.toDateString() === new Date().toDateString() ? text : `${time.toLocaleDateString("sv")} ${text}`;
}

export const ago = (ms) => (ms ? `${duration(Math.max(0, Math.round((Date.now() - ms) / 1000)))} ago` : UNKNOWN);
export const shortTopic = (name) => name.replace("persistent://public/default/", "");
export function timeOf(text) {
  const at = Date.parse(text);
  if (isNaN(at)) throw new Error("That is no time such as 2026-11-30T03:02.");
  return at;
}
