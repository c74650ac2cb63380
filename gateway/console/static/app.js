// The frame of the console: who is asked for, where one is, and the page that stands there.
import { html, render, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { setSession, useData, useSession } from "./api.js";
import { find, link, useAddress } from "./router.js";
import { Announcements, State } from "./ui.js";
import { PAGES } from "./pages.js";
import { kindOf, sentence } from "./verdict.js";

function Login({ note }) {
  const [token, keep] = useState("");
  function enter(event) {
    event.preventDefault();
    setSession({ token: token.trim(), asks: false, note: "" });
  }
  return html`<main id="main"><h1>Log in</h1>
    <p>This cluster asks who you are. The token is kept in this tab alone and is gone with it; <code>helio tokens create --subject ROLE</code> makes one.</p>
    ${note && html`<p role="alert"><${State} kind="bad">${note}<//></p>`}
    <form onSubmit=${enter}><label class="field"><span>Token</span><input type="password" name="token" autocomplete="off" required value=${token}
      onInput=${(event) => keep(event.target.value)} /></label><p class="buttons"><button class="main">Log in</button></p></form></main>`;
}

function Frame() {
  const session = useSession();
  const { segments, query } = useAddress();
  const status = useData(session.asks ? null : "status", 2);
  const main = useRef();
  const isFirst = useRef(true);
  const found = find(PAGES, segments);
  const title = found ? found.page.route.title(found.params) : "No such page";
  const place = segments.join("/");
  useEffect(() => {
    document.title = `${title} - Heliograph`;
    if (!isFirst.current && main.current) main.current.querySelector("h1").focus();
    isFirst.current = false;
  }, [place]);
  if (session.asks) return html`<${Login} note=${session.note} />`;
  const caller = (status.data && status.data.caller) || { role: "", isSuperuser: false };
  const dashboard = (status.data && status.data.dashboardUrl) || "";
  const mayNot = caller.isSuperuser ? "" : "this needs the right 'superuser'";
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.querySelector("h1").focus(); }}>Skip to the page</a>
    <header><strong class="name"><a href="#/">Heliograph</a></strong>
      <span class="dim">${status.data ? `${status.data.cluster} ${status.data.version}` : ""}</span>
      <a class="brief" href="#/"><${State} kind=${kindOf(status)}>${sentence(status)}<//></a>
      <nav aria-label="Pages">${PAGES.filter((page) => page.route.nav).map((page) => html`<a href=${link(page.route.path.split("/").filter(Boolean))}
        aria-current=${found && found.page === page ? "page" : undefined}>${page.route.nav}</a>`)}
        <a href="docs">API</a>${/^https?:\/\//.test(dashboard) && html`<a href=${dashboard} rel="noreferrer">Ray</a>`}</nav>
      <span class="who">${caller.role && html`<span class="dim">${caller.role}${caller.isSuperuser ? "" : " (may not act on the cluster)"}</span> `}
        ${session.token && html`<button onClick=${() => setSession({ token: "", asks: true, note: "" })}>Log out</button>`}</span></header>
    <${Announcements} />
    <main id="main" ref=${main}><h1 tabindex="-1">${title}</h1>
      ${found ? html`<${found.page.default} key=${place} params=${found.params} query=${query} status=${status} caller=${caller} mayNot=${mayNot} />`
        : html`<p>There is no such page in this release. <a href="#/">Overview</a></p>`}</main>`;
}

render(html`<${Frame} />`, document.getElementById("app"));
