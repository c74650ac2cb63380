// Addresses are #/segment/segment?key=value; every one is a permanent link. Tokens are never in them.
import { useEffect, useState } from "./vendor/htm-preact.js";
import { path } from "./api.js";

export const link = (segments, query) => {
  const search = new URLSearchParams(Object.entries(query || {}).filter(([, value]) => value !== "" && value != null)).toString();
  return `#/${path(...segments)}${search ? `?${search}` : ""}`;
};

export const go = (segments, query) => {
  location.hash = link(segments, query);
};

// Change the query of the present page without a new entry in the history: for filters.
export const replaceQuery = (segments, query) => {
  history.replaceState(null, "", link(segments, query));
  dispatchEvent(new HashChangeEvent("hashchange"));
};

function read() {
  const [found, search] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const segments = found.split("/").filter(Boolean).map((segment) => {
    try {
      return decodeURIComponent(segment);
    } catch {
      return segment;
    }
  });
  return { segments, query: Object.fromEntries(new URLSearchParams(search || "")) };
}

export function useAddress() {
  const [address, keep] = useState(read);
  useEffect(() => {
    const changed = () => keep(read());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return address;
}

// Find the page of an address: routes have `path` such as "topic/:name", where :name is one segment.
export function find(routes, segments) {
  for (const page of routes) {
    const wanted = page.route.path.split("/").filter(Boolean);
    if (wanted.length !== segments.length) continue;
    const params = {};
    if (wanted.every((each, n) => (each[0] === ":" ? ((params[each.slice(1)] = segments[n]), true) : each === segments[n]))) return { page, params };
  }
  return null;
}
