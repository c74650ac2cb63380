// Follows a topic by server-sent events, publishes to it, and asks a responder: plain JavaScript, without a library.

const query = new URLSearchParams(location.search);
const gateway = query.get("gateway") ?? "http://localhost:8080";
const topic = `${gateway}/topics/persistent/public/default/${encodeURIComponent(query.get("topic") ?? "flights")}`;
const SHOWN_MAX = 20; // messages on the page; older ones leave it

const state = document.getElementById("state");
const list = document.getElementById("messages");
const reply = document.getElementById("reply");

// The browser connects again by itself and sends the id of the last event, so no message is missed or shown twice.
const source = new EventSource(`${topic}/events?from=${encodeURIComponent(query.get("from") ?? "earliest")}`);
source.onopen = () => { state.textContent = "following"; };
source.onerror = () => { state.textContent = source.readyState === EventSource.CLOSED ? "refused" : "connecting again"; };
source.onmessage = (event) => {
  const message = JSON.parse(event.data);
  const item = document.createElement("li");
  item.textContent = message.payload ?? "(no text)"; // never innerHTML: anybody who may publish chooses the text
  list.append(item);
  while (list.children.length > SHOWN_MAX) list.firstChild.remove();
};
source.addEventListener("gap", (event) => {
  const { entries } = JSON.parse(event.data);
  state.textContent = `following; ${entries ?? "some"} entries were deleted before this page read them`;
});
source.addEventListener("end", () => { state.textContent = "the topic was terminated"; source.close(); });

async function post(url, text) {
  const answer = await fetch(url, { method: "POST", headers: { "Content-Type": "text/plain" }, body: text });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.reason ?? answer.statusText);
  return body;
}

document.getElementById("send").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const text = form.elements.text.value;
  reply.textContent = "";
  try {
    if (event.submitter?.name === "ask") {
      const answer = await post(`${topic}-asked?reply=wait&replyTimeoutMs=10000`, text);
      reply.textContent = answer.payload ?? "no answer";
    } else {
      await post(topic, text); // durable when it returns
      form.elements.text.value = "";
    }
  } catch (error) {
    reply.textContent = error.message;
  }
});
