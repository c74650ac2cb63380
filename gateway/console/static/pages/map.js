// Machines, bookies, brokers and repair. A dead part that is expected stays, with what was known of it last.
import { useData } from "../api.js";
import { bookieActions, brokerActions, repairAction, restartAction, scaleAction } from "../actions.js";
import { ago, bytes, clock, duration, number, share, UNKNOWN } from "../format.js";
import { Bar, Facts, Known, State, Table, html } from "../ui.js";

export const route = { path: "map", nav: "Map", title: () => "Map" };

const kindOf = (part) => (!part.is_well ? "bad" : part.is_leaving || part.is_warning ? "warn" : part.state || part.address ? "good" : "unknown");
const wordOf = (part) => (!part.is_well ? (part.address ? "ill" : "down") : part.is_leaving ? "leaving" : part.is_warning ? "soon ill" : part.state || part.address ? "well" : UNKNOWN);
const seen = (part, now) => (part.seen_ms ? (part.address && now - part.seen_ms < 15000 ? "now" : ago(part.seen_ms)) : UNKNOWN);
const old = (part, text) => (part.address || text === UNKNOWN ? text : html`<span class="dim">${text} when last seen</span>`);

function Part({ part, now, facts, actions }) {
  return html`<li class=${kindOf(part)} data-part=${part.name}>
    <h3>${part.name} <${State} kind=${kindOf(part)}>${wordOf(part)}<//>${part.is_leader ? " · leader" : ""}${part.is_draining ? " · drained" : ""}</h3>
    ${part.note && html`<p>${part.note}</p>`}
    <${Facts} of=${[...facts, ["since", clock(part.since_ms) || UNKNOWN], ["last seen", seen(part, now)], ["node", part.home || UNKNOWN]]} />
    <details><summary>Actions for ${part.name}</summary><p class="buttons">${actions}</p></details></li>`;
}

const disk = (part) => (part.total_bytes ? html`<${Bar} label=${`disk of ${part.name}`} kind=${part.used_share > 0.9 ? "bad" : ""} value=${part.used_share}
  text=${`${share(part.used_share)} used, ${bytes(part.free_bytes)} free`} />` : UNKNOWN);

function Repair({ of, mayNot, again }) {
  const hasNone = mayNot.startsWith("this cluster has no");
  const left = of.ledgers_missing_copies;
  const state = left < 0 ? ["unknown", UNKNOWN] : of.ledgers_damaged > 0 ? ["bad", "entries without a good copy"] : of.is_paused ? ["warn", "paused"] : left ? ["warn", "under way"] : ["good", "nothing is missing"];
  return html`<section id="repair" aria-label="Repair"><p><${State} kind=${state[0]}>${state[1]}<//> ${of.unknown && !hasNone ? html`<${State} kind="unknown">the auditor does not tell more: ${of.unknown}<//>` : ""}</p>
    <${Facts} of=${[["ledgers that miss copies", number(left < 0 ? null : left)], ["being repaired now", number(of.ledgers_in_repair)], ["ledgers repaired", number(of.ledgers_repaired)], ["bytes copied", bytes(of.bytes_repaired)],
      ["rate", of.bytes_per_second == null ? UNKNOWN : `${bytes(of.bytes_per_second)}/s`], ["time left", of.ledgers_without_place ? `${number(of.ledgers_without_place)} wait for a bookie that can take copies` : left ? duration(of.seconds_left) : "none needed"]]} />
    ${of.last_failure && html`<p><${State} kind="warn">last failure: ${of.last_failure}<//></p>`}
    ${hasNone && html`<p class="dim">${mayNot}.</p>`}<p class="buttons">${repairAction(of.is_paused, mayNot, again)}</p></section>`;
}

export default function ClusterMap({ mayNot }) {
  const found = useData("admin/heliograph/map", 2);
  const by = (parts, kind) => parts.filter((part) => part.kind === kind);
  return html`<${Known} of=${found} what="the map" draw=${(map) => {
    const [bookies, brokers] = [by(map.parts, "bookie"), by(map.parts, "broker")];
    const rest = map.parts.filter((part) => part.kind !== "bookie" && part.kind !== "broker");
    const racks = [...new Set(bookies.map((part) => part.rack || UNKNOWN))].sort();
    const lacks = (kind) => mayNot || (by(map.parts, kind).length || (kind === "auditor" && !map.repair.unknown) ? "" : `this cluster has no ${kind}`);
    const noOperator = lacks("operator");
    return html`<p class="dim">reported ${ago(map.as_of_ms)}</p>
      ${Object.entries(map.silent).map(([what, why]) => html`<p><${State} kind="unknown">${what}: ${why}<//></p>`)}
      <h2>Repair</h2><${Repair} of=${map.repair} mayNot=${lacks("auditor")} again=${found.again} />
      ${map.wishes.length > 0 && html`<${Table} id="wishes" caption="Changes that were asked for" rows=${map.wishes.map((wish) => ({ ...wish, name: `${wish.subject} ${wish.asked_ms}` }))} columns=${[
        { label: "Change", cell: (w) => [w.kind, w.subject, ...Object.values(w.arguments)].join(" ") }, { label: "State", cell: (w) => w.state },
        { label: "Asked", cell: (w) => clock(w.asked_ms) }, { label: "Note", cell: (w) => w.note }]} />`}
      <h2>Bookies</h2><p class="buttons">${scaleAction("bookies", bookies.length, noOperator)} ${restartAction("", noOperator)}</p>
      ${racks.map((rack) => html`<h3>Rack ${rack}</h3><ul class="cards">${bookies.filter((part) => (part.rack || UNKNOWN) === rack).map((part) => html`<${Part} key=${part.name} part=${part} now=${map.now_ms}
        facts=${[["disk", old(part, disk(part))], ["entries", part.address ? (part.is_writable === false ? "read-only" : "writable") : "takes none"],
          ["sync p99", old(part, part.sync_p99_seconds == null ? "no sync seen in a minute" : `${part.sync_p99_is_more ? "over" : "up to"} ${duration(part.sync_p99_seconds)}`)]]}
        actions=${bookieActions(part.name, !part.address, noOperator)} />`)}</ul>`)}
      <h2>Brokers</h2><p class="buttons">${scaleAction("brokers", brokers.length, noOperator)}</p>
      <ul class="cards">${brokers.map((part) => html`<${Part} key=${part.name} part=${part} now=${map.now_ms}
        facts=${[["processor", share(part.cpu_share)], ["memory", share(part.memory_share)], ["in", `${number(part.messages_in_per_second)}/s`], ["out", `${number(part.messages_out_per_second)}/s`],
          ["topics", number(part.topics)], ["bundles", number(part.bundles_owned)], ["moves", part.is_leader ? number(part.moves) : "the leader counts"]]}
        actions=${brokerActions(part, mayNot, noOperator, found.again)} />`)}</ul>
      <${Table} caption="Other parts" rows=${rest} columns=${[{ label: "Part", cell: (p) => p.name }, { label: "State", cell: (p) => html`<${State} kind=${kindOf(p)}>${wordOf(p)}<//> ${p.note}` },
        { label: "Since", cell: (p) => clock(p.since_ms) }, { label: "Version", cell: (p) => p.version }, { label: "Node", cell: (p) => p.home }]} />
      ${map.nodes.length ? html`<${Table} id="nodes" caption="Nodes" rows=${map.nodes.map((node) => ({ ...node, name: node.address }))} columns=${[{ label: "Node", cell: (n) => n.address },
        { label: "State", cell: (n) => html`<${State} kind=${n.state === "ALIVE" ? "good" : n.state === "LEAVING" ? "warn" : "bad"}>${n.state.toLowerCase()}<//>` }, { label: "Since", cell: (n) => clock(n.since_ms) },
        { label: "Parts", cell: (n) => map.parts.filter((part) => part.home === n.address).map((part) => part.name).join(", ") }]} />` : html`<p class="dim">All parts are in one process: there are no nodes to show.</p>`}`;
  }} />`;
}
