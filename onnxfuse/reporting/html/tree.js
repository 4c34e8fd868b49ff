// The tree of modules and nodes: an ARIA treegrid, one element for each row that is open to view.

const CHUNK = 200;
const ORDERS = {
  run: (a, b) => a.first - b.first,
  time: (a, b) => b.after.all - a.after.all || b.before.all - a.before.all,
  gain: (a, b) => (b.before.all - b.after.all) - (a.before.all - a.after.all),
};

const tree = { host: byId("tree"), order: "run", chosen: null, matched: null, kept: null, onchoose: () => {} };

const last = (item) => Number(item.kind === "free" || item.kind === "gone");

// The rows below one, in order; while something is searched for, those alone that have it.
function below(item) {
  let items = item.items;
  if (tree.kept && item.items.some((child) => tree.kept.has(child))) items = items.filter((child) => tree.kept.has(child));
  return tree.order === "run" ? items : [...items].sort((a, b) => last(a) - last(b) || ORDERS[tree.order](a, b));
}

function arrow(was, now, show) {
  const [before, after] = [was, now].map((value) => (value === null ? null : show(value)));
  return before === null || before === after ? after : after === null ? before : `${before} → ${after}`;
}

// [before, after] of a row; null for the one that it does not have.
function sides(item) {
  const onlyBefore = item.kind === "was" || item.kind === "gone";
  return [item.kept ? null : item.before, onlyBefore ? null : item.after];
}

function nameCell(item) {
  const cell = make("div", { role: "gridcell", class: "name" });
  cell.style.setProperty("--level", item.level);
  cell.append(make("span", { class: "twist", "aria-hidden": "true" }));
  const { node, kind } = item;
  if (kind === "alike") cell.append(make("span", { class: "module" }, item.label), make("b", { class: "pill" }, `×${item.items.length}`));
  else if (kind === "module") cell.append(make("span", { class: "module" }, item.label));
  else if (kind === "gone" || kind === "free") cell.append(make("span", { class: "was" }, `${item.label}: ${plural(item.items.length, "node", "nodes")}`));
  else {
    if (node.fusion) cell.append(make("b", { class: "pill fused" }, "fused"));
    const op = node.op.replace(/^onnxfuse\./, "");
    cell.append(make("span", { class: kind === "was" ? "was" : "op" }, op), node.short === op ? "" : make("span", { class: "dim mono", title: node.name }, node.short));
  }
  return cell;
}

function rowElement(item, position, of, longest) {
  const [before, after] = sides(item);
  const figure = (text) => make("div", { role: "gridcell", class: "figure" }, text);
  const bytes = (sum) => (sum.unsized && !sum.bytes ? "?" : (sum.unsized ? ">" : "") + humanBytes(sum.bytes));
  const time = make("div", { role: "gridcell", class: "time" });
  const launches = arrow(before?.launches ?? null, after?.launches ?? null, whole);
  const idle = launches === "0";
  if (before && !idle) time.append(bar([["bar-before", before.all]], longest));
  if (after && !idle) time.append(bar(segments(after), longest));
  const share = after?.all ? percent(after.all, root.after.all) : "";
  if (!idle) time.append(make("span", { class: "text" }, arrow(before?.all ?? null, after?.all ?? null, humanTime), make("span", { class: "dim" }, share)));
  const element = make(
    "div",
    { role: "row", tabindex: "-1", "aria-level": item.level + 1, "aria-posinset": position, "aria-setsize": of, "aria-selected": String(item === tree.chosen) },
    nameCell(item),
    figure(idle ? "–" : launches),
    figure(idle ? "" : arrow(before, after, bytes)),
    time,
  );
  element.item = item;
  item.element = element;
  if (item.items.length) mark(item);
  return element;
}

function mark(item) {
  item.element.setAttribute("aria-expanded", String(item.open));
  item.element.querySelector(".twist").textContent = item.open ? "▾" : "▸";
}

// The elements of what is below a row, as far as it is open.
function elementsBelow(item) {
  const items = below(item);
  const limit = Math.max(item.limit, CHUNK);
  const longest = Math.max(...items.slice(0, limit).flatMap((child) => sides(child).map((sum) => sum?.all ?? 0)), 0);
  const found = [];
  items.slice(0, limit).forEach((child, index) => {
    found.push(rowElement(child, index + 1, items.length, longest));
    if (child.open) found.push(...elementsBelow(child));
  });
  if (items.length > limit) {
    const more = make("div", { role: "row", tabindex: "-1", class: "more", "aria-level": item.level + 2 },
      make("div", { role: "gridcell", class: "name" }, make("span", { class: "link" }, `${whole(items.length - limit)} more: show ${whole(Math.min(items.length - limit, 5 * CHUNK))}`)));
    more.firstChild.style.setProperty("--level", item.level + 1);
    more.item = { kind: "more", parent: item, level: item.level + 1, items: [] };
    found.push(more);
  }
  return found;
}

function renderTree() {
  const head = make("div", { role: "row", class: "head" },
    ["Module or node", "Launches", "Bytes moved", "Predicted time"].map((text, index) =>
      make("div", { role: "columnheader", class: index ? "figure" : "name" }, text)));
  head.lastChild.className = "time";
  tree.host.replaceChildren(head, rowElement(root, 1, 1, Math.max(root.before.all, root.after.all)), ...(root.open ? elementsBelow(root) : []));
  (tree.chosen?.element?.isConnected ? tree.chosen : root).element.tabIndex = 0;
}

function setOpen(item, open) {
  if (!item.items.length || item.open === open) return;
  item.open = open;
  mark(item);
  if (open) item.element.after(...elementsBelow(item));
  else while (item.element.nextElementSibling && level(item.element.nextElementSibling) > item.level) item.element.nextElementSibling.remove();
}

const level = (element) => element.item.level;

function focusRow(element) {
  if (!element?.item) return;
  tree.host.querySelector('[role="row"][tabindex="0"]')?.setAttribute("tabindex", "-1");
  element.tabIndex = 0;
  element.focus({ preventScroll: true });
  element.scrollIntoView({ block: "nearest" });
}

function choose(item) {
  if (item.kind === "more") return showMore(item);
  tree.chosen?.element?.setAttribute("aria-selected", "false");
  tree.chosen = item;
  item.element?.setAttribute("aria-selected", "true");
  tree.onchoose(item);
}

function showMore({ parent }) {
  const at = Math.max(parent.limit, CHUNK);
  parent.limit = at + 5 * CHUNK;
  const next = below(parent)[at];
  renderTree();
  focusRow(next.element);
}

// Opens what is around a row, and chooses it.
function reveal(item) {
  if (tree.kept && !tree.kept.has(item)) search("");
  openAround(item);
  renderTree();
  choose(item);
  focusRow(item.element);
}

function openAround(item) {
  for (let inner = item; inner.parent; inner = inner.parent) {
    inner.parent.open = true;
    const place = below(inner.parent).indexOf(inner);
    if (place >= Math.max(inner.parent.limit, CHUNK)) inner.parent.limit = place + CHUNK;
  }
}

// Shows the rows that have every word of a text, and what is around them.
const SHOWN = 100;
function search(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  byId("search").value = text;
  close(root);
  if (!words.length) {
    tree.matched = tree.kept = null;
    byId("found").textContent = "";
    opened();
    return renderTree();
  }
  tree.matched = [];
  tree.kept = new Set();
  (function visit(item) {
    item.text ??= textOf(item);
    if (item !== root && words.every((part) => item.text.includes(part))) tree.matched.push(item);
    item.items.forEach(visit);
  })(root);
  tree.matched.forEach((item, index) => {
    for (let outer = item; outer && !tree.kept.has(outer); outer = outer.parent) tree.kept.add(outer);
    for (let outer = item.parent; outer && index < SHOWN; outer = outer.parent) outer.open = true;
  });
  const of = (kind) => tree.matched.filter((item) => item.kind === kind || (kind === "was" && item.kept)).length;
  const modules = of("module") + of("alike");
  byId("found").textContent = tree.matched.length
    ? `${plural(of("node"), "node", "nodes")} now, ${whole(of("was"))} before${modules ? `, ${plural(modules, "module", "modules")}` : ""}`
    : "nothing has that";
  if (!tree.matched.length) tree.kept.add(root);
  return renderTree();
}

function close(item) {
  item.open = false;
  item.items.forEach(close);
}

// What is open at first: as much as fits into view, the outer modules first.
function opened() {
  let room = 24;
  let front = [root];
  while (front.length) {
    const next = [];
    for (const item of front) {
      const inner = item.items.length;
      if (!inner || (inner > room && item !== root)) continue;
      item.open = true;
      room -= inner;
      if (item.kind === "module") next.push(...item.items.filter((child) => child.kind === "module" || child.kind === "alike"));
    }
    front = next;
  }
}

const KEYS = {
  ArrowDown: (element) => focusRow(element.nextElementSibling),
  ArrowUp: (element) => focusRow(element.previousElementSibling),
  ArrowRight: (element) => (element.item.items.length && !element.item.open ? setOpen(element.item, true) : element.item.items.length && focusRow(element.nextElementSibling)),
  ArrowLeft: (element) => (element.item.open ? setOpen(element.item, false) : focusRow(element.item.parent?.element)),
  Home: () => focusRow(root.element),
  End: () => focusRow(tree.host.lastElementChild),
  Enter: (element) => choose(element.item),
  " ": (element) => choose(element.item),
};

tree.host.addEventListener("keydown", (event) => {
  const element = event.target.closest('[role="row"]');
  const act = KEYS[event.key];
  if (!element?.item || !act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act(element);
});
tree.host.addEventListener("click", (event) => {
  const element = event.target.closest('[role="row"]');
  if (!element?.item) return;
  if (event.target.closest(".twist")) setOpen(element.item, !element.item.open);
  else choose(element.item);
  if (element.isConnected) focusRow(element);
});
tree.host.addEventListener("dblclick", (event) => {
  const item = event.target.closest('[role="row"]')?.item;
  if (item?.element && !event.target.closest(".twist")) setOpen(item, !item.open);
});
