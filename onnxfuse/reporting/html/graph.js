// The nodes of one module before and after, drawn by cytoscape and laid out by dagre; fused regions in colour.

const MOST = 150;
const REGIONS = 8;
const drawn = [];

// The colours of the page, or those of its print.
function palette(printing = false) {
  const print = printing && [...document.styleSheets[0].cssRules].find((rule) => rule.media?.mediaText === "print");
  const style = print ? print.cssRules[0].style : getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(`--${name}`).trim();
}

function graphStyle(colour) {
  const regions = Array.from({ length: REGIONS }, (_, index) => ({
    selector: `.region-${index}`, style: { "background-color": colour(`region-${index}`) },
  }));
  return [
    { selector: "node", style: {
      label: "data(label)", shape: "round-rectangle", width: "data(width)", height: "data(height)", color: colour("text"),
      "background-color": colour("plain"), "border-width": 1, "border-color": colour("edge"), "font-size": 12,
      "font-family": "system-ui, Liberation Sans, sans-serif", "text-valign": "center", "text-wrap": "wrap" } },
    { selector: ".module", style: { "background-color": colour("back"), "border-width": 2, "font-weight": "bold" } },
    { selector: ".fused", style: { "border-width": 2, "border-color": colour("fused"), "font-weight": "bold" } },
    ...regions,
    { selector: ".free", style: { "border-style": "dashed", color: colour("dim"), "background-opacity": 0.35 } },
    { selector: "edge", style: { width: 1.3, "line-color": colour("edge"), "target-arrow-color": colour("edge"), "target-arrow-shape": "triangle", "arrow-scale": 0.8, "curve-style": "bezier" } },
    { selector: ".chosen", style: { "border-width": 4, "border-color": colour("focus"), "border-style": "solid" } },
  ];
}

// The module whose inside is drawn for a row: its own, that of the first of several that are alike, or that around it.
function drawnModule(item) {
  while (item.kind === "alike") item = item.items[0];
  while (item.kind !== "module") item = item.parent;
  return item;
}

// What stands for each node of the module in the picture: a node directly in it for itself, another for its module.  What
// launches nothing is left out, unless it is chosen: edges lead through it.
function picture(module, side, chosen) {
  const items = new Map();
  const of = new Map();
  let regions = 0;
  let through = 0;
  const put = (key, value) => { if (!items.has(key)) items.set(key, value); return key; };
  const all = (item, key) => {
    if (item.node) of.set(item.node, key);
    if (item.kind === "node" && side === "before") item.node.was.forEach((node) => of.set(node, key));
    item.items.forEach((inner) => all(inner, key));
  };
  const alone = (node, item, region) => {
    if (node.launches || node.fusion || node === chosen) of.set(node, put(node, single(node, item, region)));
    else { of.set(node, null); through++; }
  };
  for (const item of module.items.flatMap((inner) => (inner.kind === "free" ? inner.items : inner))) {
    if (item.kind === "module" || item.kind === "alike") {
      if (side === "before" ? !item.before.nodes : !item.after.nodes) continue;
      all(item, put(item, { row: item, label: moduleLabel(item, side), classes: "module" }));
    } else if (item.kind === "node") {
      const region = item.node.fusion ? regions++ : -1;
      if (side === "after") alone(item.node, item, region);
      else for (const node of item.node.was) alone(node, item.items.find((inner) => inner.node === node) ?? item, region);
    } else if (side === "before") {
      for (const inner of item.items) alone(inner.node, inner, -1);
    }
  }
  return { items, edges: edgesOf(of, side), through };
}

function moduleLabel(item, side) {
  const launches = item[side].launches;
  const often = item.kind === "alike" ? ` ×${item.items.length}` : "";
  return `${item.label.split("/").slice(-2).join("/")}${often}\n${plural(launches, "launch", "launches")}`;
}

function single(node, item, region) {
  const label = node.op.replace(/^.*\./, "") + (region >= 0 ? ` [${region + 1}]` : "");
  const fused = node.fusion ? "fused" : "";
  return { row: item, node, label, classes: `${region >= 0 ? `region-${region % REGIONS}` : ""} ${fused} ${node.launches || node.fusion ? "" : "free"}` };
}

function edgesOf(of, side) {
  const edges = new Map();
  const known = new Map();
  // The boxes whose values a node of the module gives on, itself or by way of what is left out.
  const sources = (node) => {
    const own = of.get(node);
    if (own !== null) return own === undefined ? [] : [own];
    if (!known.has(node)) known.set(node, [...new Set(node.reads.flatMap((read) => sources(nodes[side][read])))]);
    return known.get(node);
  };
  for (const [node, to] of of) {
    if (node.side !== side || to === null) continue;
    for (const from of node.reads.flatMap((read) => sources(nodes[side][read]))) {
      if (from === to) continue;
      if (!edges.has(from)) edges.set(from, new Set());
      edges.get(from).add(to);
    }
  }
  return edges;
}

// Of a picture with too much in it, what is nearest to the chosen.
function near(items, edges, centre) {
  if (items.size <= MOST) return new Set(items.keys());
  const next = new Map([...items.keys()].map((key) => [key, []]));
  for (const [from, others] of edges) for (const to of others) { next.get(from)?.push(to); next.get(to)?.push(from); }
  const found = new Set([centre ?? items.keys().next().value]);
  for (const key of found) {
    for (const other of next.get(key) ?? []) if (found.size < MOST) found.add(other);
    if (found.size >= MOST) break;
  }
  return found;
}

function drawGraphs(host, chosen) {
  drawn.splice(0).forEach((graph) => graph.destroy());
  host.replaceChildren();
  const module = drawnModule(chosen);
  for (const side of ["before", "after"]) {
    const { items, edges, through } = picture(module, side, chosen.node);
    const marked = (value) => value.row === chosen || (chosen.node && value.node === chosen.node) || (side === "before" && value.row.parent === chosen && chosen.kind === "node");
    const centre = [...items].find(([, value]) => marked(value))?.[0];
    const shown = near(items, edges, centre);
    if (!items.size) continue;
    const ids = new Map([...shown].map((key, index) => [key, `n${index}`]));
    const elements = [...shown].map((key) => {
      const value = items.get(key);
      const lines = value.label.split("\n");
      const width = Math.max(...lines.map((line) => line.length)) * 7.2 + 16;
      return { data: { id: ids.get(key), label: value.label, width, height: lines.length * 15 + 10 }, classes: value.classes + (marked(value) ? " chosen" : ""), scratch: { row: value.row } };
    });
    for (const [from, others] of edges) for (const to of others) {
      if (ids.has(from) && ids.has(to)) elements.push({ data: { source: ids.get(from), target: ids.get(to) } });
    }
    host.append(framed(elements, side, module, items.size, shown.size, through));
  }
}

function framed(elements, side, module, all, shown, through) {
  const canvas = make("div", { class: "canvas", role: "img" });
  const what = `${module.label} ${side}: ${shown < all ? `${whole(shown)} of ${whole(all)} boxes, those around the chosen` : plural(all, "box", "boxes")}${through ? `, without ${plural(through, "view or shape", "views and shapes")}` : ""}`;
  canvas.setAttribute("aria-label", `Graph of ${what}; the tree has the same nodes`);
  let graph;
  const zoom = (factor) => graph.zoom({ level: graph.zoom() * factor, renderedPosition: { x: graph.width() / 2, y: graph.height() / 2 } });
  const tool = (text, label, act) => make("button", { type: "button", "aria-label": `${label} (${side})`, title: label, onclick: act }, text);
  const caption = make("figcaption", {}, make("span", {}, make("b", {}, side === "before" ? "Before" : "After"), ` ${what.slice(what.indexOf(": ") + 2)}`),
    tool("+", "Closer", () => zoom(1.4)), tool("−", "Farther", () => zoom(1 / 1.4)), tool("⤢", "All of it", () => graph.fit(undefined, 8)));
  const figure = make("figure", {}, caption, canvas, make("img", { class: "printed", alt: `Graph of ${what}` }));
  requestAnimationFrame(() => {
    if (!canvas.isConnected) return;
    graph = cytoscape({
      container: canvas, elements, style: graphStyle(palette()), autoungrabify: true, boxSelectionEnabled: false,
      userZoomingEnabled: false, minZoom: 0.05, maxZoom: 3,
      layout: { name: "dagre", rankDir: "TB", nodeSep: 14, rankSep: 26, fit: true, padding: 8, animate: false },
    });
    legible(graph);
    graph.on("tap", "node", (event) => reveal(event.target.scratch("row")));
    graph.image = figure.lastChild;
    drawn.push(graph);
  });
  return figure;
}

// Not so far away that nothing can be read: then what is chosen is in the middle, or the beginning at the top.
function legible(graph) {
  if (graph.zoom() > 1.15) { graph.zoom(1.15); graph.center(); }
  if (graph.zoom() >= 0.5) return;
  graph.zoom(0.62);
  const chosen = graph.nodes(".chosen");
  if (chosen.length) return void graph.center(chosen);
  const box = graph.elements().boundingBox();
  const first = graph.nodes().min((node) => node.position("y")).ele;
  graph.pan({ x: graph.width() / 2 - first.position("x") * graph.zoom(), y: 12 - box.y1 * graph.zoom() });
}

function restyle() {
  for (const graph of drawn) graph.style(graphStyle(palette()));
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
addEventListener("beforeprint", () => {
  const colour = palette(true);
  for (const graph of drawn) {
    graph.style(graphStyle(colour));
    graph.image.src = graph.png({ full: true, scale: 2, bg: colour("back") });
  }
});
addEventListener("afterprint", restyle);
