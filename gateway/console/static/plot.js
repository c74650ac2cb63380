// Curves of samples as SVG: one line a series, a gap where nothing is known. The values at the pointer are text.
import { html, useState } from "./vendor/htm-preact.js";
import { clock } from "./format.js";

// of: {title, lines: [[label, samples]]}, of one length; end: ms of the last samples; step: ms; show(value): as it is written
export function Plot({ of, end, step, show }) {
  const [at, point] = useState(null);
  const last = of.lines[0][1].length - 1;
  const top = Math.max(0, ...of.lines.flatMap(([, values]) => values)) || 1;
  const time = (n) => clock(end - (last - n) * step);
  const curve = (values) => values.map((v, n) => {
    const place = `${n} ${(100 - (100 * v) / top).toFixed(1)}`;
    return v == null ? "" : values[n - 1] == null ? `M${place}h0` : `L${place}`; // h0: one sample alone is a dot
  }).join("");
  const move = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    point(Math.min(last, Math.max(0, Math.round(((event.clientX - box.left) / box.width) * last))));
  };
  const said = (values) => {
    const known = values.filter((v) => v != null);
    if (at != null) return values[at] == null ? "unknown" : show(values[at]);
    const now = values[last] == null ? "unknown" : show(values[last]);
    return known.length ? `${now} now, ${show(Math.min(...known))} to ${show(Math.max(...known))}` : "unknown";
  };
  return html`<figure><figcaption><strong>${of.title}</strong>${at != null && html` at <time>${time(at)}</time>`} ${of.lines.map(([label, values], n) =>
    html`<span class="line${n % 5}"><span aria-hidden="true">━</span> ${label}: ${said(values)};</span> `)}</figcaption>
    <div class="plot" aria-hidden="true"><span>${show(top)}</span>
      <svg viewBox=${`0 0 ${last || 1} 100`} preserveAspectRatio="none" onPointerMove=${move} onPointerLeave=${() => point(null)}>
        ${of.lines.map(([, values], n) => html`<path class="line${n % 5}" d=${curve(values)} />`)}
        ${at != null && html`<path class="at" d=${`M${at} 0V100`} />`}</svg>
      <span>0</span><p>${[0, last >> 1, last].map((n) => html`<time>${time(n)}</time>`)}</p></div></figure>`;
}
