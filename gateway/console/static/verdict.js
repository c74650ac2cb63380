// The verdict of a status, as the header of every page and the overview say it.
import { clock } from "./format.js";

export function kindOf(status) {
  if (status.state !== "known") return "unknown";
  const { verdict, findings } = status.data;
  if (verdict.startsWith("unknown")) return "unknown";
  if (findings.some((finding) => !finding.is_warning)) return "bad";
  return findings.length ? "warn" : "good";
}

export function sentence(status) {
  if (status.state === "loading") return "asking";
  if (status.state !== "known") return `unknown: ${status.error.message}`;
  const since = status.data.findings.filter((f) => f.since_ms && !f.is_warning).map((f) => f.since_ms);
  const text = status.data.verdict;
  return since.length ? text.replace(/^(degraded|publishing is \w+)/, `$1 since ${clock(Math.min(...since))}`) : text;
}
