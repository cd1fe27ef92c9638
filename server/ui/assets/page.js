// The page works without this script, except that a token in the fragment of a link is not used.

// A link may end in #token=TOKEN. Browsers keep fragments for themselves; the token is sent once, in the body of the form.
const given = location.hash.match(/^#token=(.+)$/);
const form = document.querySelector(".sign-in");
if (given) {
  history.replaceState(null, "", location.pathname + location.search);
  const send = document.createElement("form");
  send.method = "post";
  send.action = "/ui/-/sign-in";
  const next = form ? form.dataset.next : location.pathname + location.search;
  for (const [name, value] of [["token", decodeURIComponent(given[1])], ["next", next]]) {
    const field = document.createElement("input");
    field.type = "hidden";
    field.name = name;
    field.value = value;
    send.append(field);
  }
  if (document.body.hasAttribute("data-ask")) {
    // The page that has made the link may want the user to act with its token.
    const who = document.querySelector(".who > span");
    const text = document.createElement("span");
    text.textContent = "The link contains a token. " + (who ? `You are signed in as ${who.textContent}; the token replaces that. ` : "") +
      "Sign in with it only if you trust the person who sent you the link.";
    const yes = document.createElement("button");
    yes.textContent = "Sign in with the token of the link";
    send.className = "act";
    send.append(text, yes);
    document.getElementById("main").prepend(send);
  } else {
    document.body.append(send);
    send.submit();
  }
} else {
  // A browser sends no cookie with a link from another site, but does so when this page asks again.
  const again = document.querySelector("[data-again]");
  if (again) again.click();
}

const say = (text) => { document.getElementById("said").textContent = text; };

async function copy(button) {
  const text = button.parentElement.querySelector("code").textContent;
  try {
    await navigator.clipboard.writeText(text);
    say("Copied");
    const label = button.firstChild;
    label.data = "Copied";
    setTimeout(() => { label.data = "Copy"; }, 1500);
  } catch { // there is no clipboard without https
    getSelection().selectAllChildren(button.parentElement.querySelector("code"));
    say("Selected");
  }
}

const buttons = (root) => { for (const b of root.querySelectorAll("[data-copy], [data-help], [data-hint]")) b.hidden = false; };
buttons(document);

// part returns a part of a page as HTML of this server.
async function part(url, name) {
  const to = new URL(url, location);
  to.searchParams.set("part", name);
  const answer = await fetch(to, { headers: { Accept: "text/html" } });
  if (!answer.ok) throw new Error(String(answer.status));
  return answer.text();
}

// The cursor of a timeline: the panel changes, and the list stays where it is.
const panel = document.getElementById("cursor");
async function select(link) {
  for (const other of document.querySelectorAll(".axis a[aria-current]")) other.removeAttribute("aria-current");
  link.setAttribute("aria-current", "true");
  try {
    panel.innerHTML = await part(link.href, "cursor");
    panel.classList.add("full");
    buttons(panel);
    panel.scrollIntoView({ block: "nearest" }); // on a narrow screen, the panel is above the list
    history.replaceState(null, "", link.href);
  } catch {
    location.href = link.href; // for example, the token was revoked: the page says so
  }
}

async function load(details) {
  const link = details.querySelector("p > a");
  if (!link || details.dataset.loaded) return;
  details.dataset.loaded = "yes";
  const body = link.parentElement;
  try {
    const box = document.createElement("div");
    box.innerHTML = await part(link.href, "file");
    buttons(box);
    body.replaceWith(box);
  } catch {
    delete details.dataset.loaded;
    body.append(" (could not be loaded)");
  }
}

document.addEventListener("toggle", (e) => { if (e.target.open && e.target.matches(".changes > details")) load(e.target); }, true);
for (const d of document.querySelectorAll(".changes[data-open] > details")) d.open = true;

// comment makes the form below a file be about the line that was clicked: by its number or, in a difference while the form is open, by the
// line. With Shift it is the last line.
function comment(e) {
  const line = e.target.closest(".view a[data-n], .sides .run > pre > *");
  if (!line) return;
  let chosen = line;
  let form = document.querySelector("details.lines");
  if (line.tagName !== "A") {
    const run = line.closest(".run");
    const at = [...line.parentElement.children].indexOf(line); // a narrow screen hides the new side of lines that did not change
    if (run.classList.contains("same")) chosen = run.lastElementChild.children[at];
    else if (line.parentElement !== run.lastElementChild) return;
    form = line.closest(".sides").parentElement.querySelector("details.lines[open]");
  }
  if (!form) return;
  form.open = true;
  form.querySelector(e.shiftKey ? "[name=end]" : "[name=line]").value = chosen.dataset.n;
}

document.addEventListener("click", (e) => {
  const button = e.target.closest("button");
  if (button && "copy" in button.dataset) copy(button);
  if (button && "help" in button.dataset) document.getElementById("help").showModal();
  comment(e);
  const link = e.target.closest(".axis a[data-entry]");
  if (link && panel && !e.ctrlKey && !e.metaKey && !e.shiftKey && e.button === 0) {
    e.preventDefault();
    select(link);
  }
});

document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target.matches("input, textarea, select") || document.querySelector("dialog[open]")) return;
  const go = (selector) => { const link = document.querySelector(selector); if (link) link.click(); };
  const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[e.key];
  const arrow = e.key.startsWith("Arrow");
  // The arrows scroll, except among the entries of a list.
  if (step && (!arrow || document.activeElement.matches("[data-entry]"))) {
    const all = [...document.querySelectorAll("[data-entry]")];
    const at = all.indexOf(document.activeElement);
    const start = at < 0 ? all.findIndex((a) => a.hasAttribute("aria-current")) : at;
    const to = all[Math.max(0, Math.min(all.length - 1, start + step))];
    if (to) to.focus();
  } else if (e.key === "n") go("nav a[rel=next]");
  else if (e.key === "p") go("nav a[rel=prev]");
  else if (e.key === "u") go("header nav a:last-of-type");
  else if (e.key === "?") document.getElementById("help").showModal();
  else return;
  e.preventDefault();
});
