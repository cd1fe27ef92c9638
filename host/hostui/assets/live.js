// Replaces the figures of a live page by those that the server sends. Elements stay; only what has changed is written.
const live = document.getElementById("live");
const map = document.getElementById("map");
const rows = document.getElementById("rows");
const charts = { requests: [], received: [] };
const namespace = "http://www.w3.org/2000/svg";
let source, width, height, wait, failures = 0;

const set = (e, name, value) => { if (e.getAttribute(name) !== String(value)) e.setAttribute(name, value); };
const write = (e, text) => { if (e.textContent !== text) e.textContent = text; };

// keyed brings the children of a parent into the order of a list, whose items have keys. make returns a new child.
function keyed(parent, list, make, update) {
  const old = new Map([...parent.children].map((e) => [e.dataset.key, e]));
  let at = parent.firstElementChild;
  for (const item of list) {
    let e = old.get(item.key);
    old.delete(item.key);
    if (!e) {
      e = make();
      e.dataset.key = item.key;
    }
    if (e === at) at = at.nextElementSibling;
    else parent.insertBefore(e, at);
    update(e, item);
  }
  for (const e of old.values()) e.remove();
}

function makeBox() {
  const g = document.createElementNS(namespace, "g");
  const a = document.createElementNS(namespace, "a");
  a.setAttribute("tabindex", "-1");
  for (const name of ["title", "rect", "rect", "rect", "rect", "text"]) a.append(document.createElementNS(namespace, name));
  g.append(a);
  return g;
}

function rect(e, name, x, y, w, h) {
  set(e, "class", name);
  set(e, "x", x);
  set(e, "y", y);
  set(e, "width", w);
  set(e, "height", h);
}

function updateBox(g, b) {
  const a = g.firstElementChild;
  const [title, back, fetched, coming, edge, text] = a.children;
  if (b.link) set(a, "href", b.link);
  else a.removeAttribute("href");
  write(title, b.title);
  rect(back, b.group ? "back group" : "back", b.x, b.y, b.w, b.h);
  rect(fetched, "fetched", b.x, b.y + b.h - b.fetched, b.w, b.fetched);
  rect(coming, "coming", b.x, b.y + b.h - b.fetched - b.coming, b.w, b.coming);
  rect(edge, "edge h" + b.heat, b.x, b.y, b.w, b.h);
  set(text, "x", b.x + 4);
  set(text, "y", b.y + 13);
  write(text, b.label || "");
}

function makeRow() {
  const tr = document.createElement("tr");
  const th = document.createElement("th");
  th.scope = "row";
  tr.append(th);
  for (const label of ["Files", "Fetched", "Fetching", "Size", "Requests/s", "Waited/s"]) {
    const td = document.createElement("td");
    td.dataset.label = label;
    td.className = "num";
    tr.append(td);
  }
  return tr;
}

function updateRow(tr, r) {
  const [th, ...cells] = tr.children;
  let a = th.querySelector("a");
  if (r.link && !a) {
    th.textContent = "";
    a = document.createElement("a");
    a.dataset.entry = "";
    th.append(a);
  }
  if (a) set(a, "href", r.link);
  write(a || th, r.name);
  [r.files, r.fetched, r.fetching, r.size, r.requests, r.waited].forEach((text, i) => write(cells[i], text));
}

function chart(name, value, unit) {
  const values = charts[name];
  values.push(value);
  if (values.length > 120) values.shift();
  const most = Math.max(1, ...values);
  const from = 120 - values.length;
  set(document.getElementById("chart-" + name), "d", values.map((v, i) => (i ? "L" : "M") + (from + i) + " " + (29 - 28 * v / most).toFixed(1)).join(""));
  write(document.getElementById("most-" + name), most > 1 ? "(at most " + unit(most) + "/s)" : "");
}

const bytes = (n) => n < 1 << 20 ? (n / 1024).toFixed(1) + " KiB" : (n / (1 << 20)).toFixed(1) + " MiB";

function show(v) {
  for (const f of v.figures) write(document.getElementById("f-" + f.id), f.text);
  document.getElementById("counting").hidden = !v.counting;
  write(document.getElementById("problem"), v.problem || "");
  chart("requests", v.requests, (n) => String(Math.round(n)));
  chart("received", v.received, bytes);
  if (!v.boxes) return;
  set(map, "viewBox", "0 0 " + width + " " + height);
  keyed(map, v.boxes, makeBox, updateBox);
  keyed(rows, v.rows, makeRow, updateRow);
  live.dataset.views = Number(live.dataset.views || 0) + 1;
}

// The page is followed only while it can be seen.
function connect() {
  if (source) source.close();
  source = undefined;
  if (document.hidden) return;
  const box = map.getBoundingClientRect();
  width = Math.round(box.width);
  height = Math.round(box.height);
  source = new EventSource(live.dataset.events + "&width=" + width + "&height=" + height);
  source.onmessage = (e) => {
    const v = JSON.parse(e.data);
    show(v);
    if (v.problem) source.close();
  };
  source.onerror = () => { // the browser would try again for ever
    source.close();
    failures++;
    write(document.getElementById("problem"), "The connection was lost." + (failures > 3 ? " Reload the page to try again." : ""));
    clearTimeout(wait);
    if (failures <= 3) wait = setTimeout(connect, 2000 * failures);
  };
  source.onopen = () => { failures = 0; write(document.getElementById("problem"), ""); };
}

document.querySelector(".charts").hidden = false;
document.addEventListener("visibilitychange", connect);
addEventListener("pagehide", () => { if (source) source.close(); });
addEventListener("resize", () => {
  clearTimeout(wait);
  wait = setTimeout(() => {
    const box = map.getBoundingClientRect();
    if (Math.round(box.width) !== width || Math.round(box.height) !== height) connect();
  }, 300);
});
connect();
