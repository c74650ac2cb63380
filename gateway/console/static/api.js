// The one way to the gateway: it sends the token, keeps the role, names every failure, and knows when nothing is known.
import { useEffect, useRef, useState } from "./vendor/htm-preact.js";

const KEY = "heliograph-token"; // of this tab only; a cookie would be sent by the browser itself, a URL is logged
export const session = { token: sessionStorage.getItem(KEY) || "", asks: false, note: "" };
const watchers = new Set();

// Redraw the frame when the session changes.
export function useSession() {
  const [, redraw] = useState(0);
  useEffect(() => {
    const watcher = () => redraw((n) => n + 1);
    watchers.add(watcher);
    return () => watchers.delete(watcher);
  }, []);
  return session;
}

export function setSession(changes) {
  Object.assign(session, changes);
  if (session.token) sessionStorage.setItem(KEY, session.token);
  else sessionStorage.removeItem(KEY);
  watchers.forEach((watcher) => watcher());
}

// A refusal or a silence of the gateway. `status` is 0 where nothing came back: then it is unknown what was done.
export class Problem extends Error {
  constructor(reason, status, body = {}) {
    super(reason);
    this.status = status;
    this.field = body.field;
    this.advice = body.advice;
  }
}

export const path = (...segments) => segments.map(encodeURIComponent).join("/");

// Ask the gateway; the address is relative, so that a proxy may serve it below a prefix. `stream` returns the response.
export async function ask(address, { method = "GET", body, signal, stream } = {}) {
  const headers = session.token ? { Authorization: `Bearer ${session.token}` } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(address, {
      method, headers, signal, cache: "no-store", credentials: "same-origin",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(`the gateway does not answer (${error.message})`, 0);
  }
  if (answer.status === 401) {
    setSession({ token: "", asks: true, note: session.token ? "The token is not accepted." : "" });
    throw new Problem("log in with a token", 401);
  }
  if (answer.ok && stream) return answer;
  const text = await answer.text();
  let found = text;
  try {
    found = text ? JSON.parse(text) : null;
  } catch {
    // Some answers of Pulsar's interface are plain text.
  }
  if (answer.ok) return found;
  throw new Problem((found && found.reason) || `status ${answer.status}`, answer.status, found || {});
}

// Run an operation by its own name, such as cursors.skip; rights are those of the operation.
export const operate = (name, given = {}) =>
  ask(`admin/heliograph/operations/${path(name)}`, { method: "POST", body: { arguments: given } }).then((found) => found.value);

// Read an address again and again while the page is seen.
// state: "loading"; "known"; "unknown" (error says why, and data is what was known at asOf); "refused": not for this role.
export function useData(address, seconds = 2) {
  const [found, keep] = useState({ state: "loading" });
  const again = useRef(() => {});
  useEffect(() => {
    if (!address) return undefined;
    let timer;
    let stop = new AbortController();
    keep({ state: "loading" });
    async function read() {
      clearTimeout(timer);
      stop.abort();
      const mine = (stop = new AbortController());
      try {
        const data = await ask(address, { signal: mine.signal });
        if (!mine.signal.aborted) keep({ state: "known", data, asOf: Date.now() });
      } catch (error) {
        if (mine.signal.aborted) return;
        const state = error.status === 403 ? "refused" : error.status === 404 ? "missing" : "unknown";
        keep((old) => ({ ...old, state, error }));
        if (state === "refused") return; // each refusal is a line of the audit log
      }
      if (seconds && !mine.signal.aborted) timer = setTimeout(read, seconds * 1000);
    }
    again.current = read;
    read();
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [address, seconds, session.token]);
  return { ...found, again: () => again.current() };
}
