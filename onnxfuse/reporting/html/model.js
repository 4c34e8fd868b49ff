// The data of the page as objects: nodes of both models, and the rows of the tree with their sums.

const data = JSON.parse(byId("data").textContent);
const word = (index) => data.words[index];

function nodesOf(columns, side) {
  const count = columns.name.length;
  const nodes = [];
  for (let i = 0; i < count; i++) {
    const inside = columns.scope[i] < 0;
    const scope = word(inside ? -1 - columns.scope[i] : columns.scope[i]);
    nodes.push({
      side, short: columns.name[i], name: inside ? `${scope}/${columns.name[i]}` : columns.name[i], scope,
      op: word(columns.op[i]), launches: Number(columns.launched[i]), bound: columns.bound[i],
      kind: columns.kind[i], work: columns.work[i], bytes: columns.bytes[i], flops: columns.flops[i],
    });
  }
  return nodes;
}

function decoded() {
  const before = nodesOf(data.before, "before");
  const changed = nodesOf(data.after, "after");
  const after = data.after.same.map((index) => (index < 0 ? changed.shift() : { ...before[index], side: "after" }));
  for (const [nodes, columns] of [[before, data.before], [after, data.after]]) {
    nodes.forEach((node, index) => {
      node.index = index;
      node.reads = columns.reads[index].map((back) => index - back);
      node.spent = spent(node);
    });
  }
  before.forEach((node, index) => { node.becomes = data.before.becomes[index]; });
  after.forEach((node, index) => {
    const at = data.after.fusion[index];
    node.fusion = at < 0 ? null : fusionOf(data.fusions[at]);
    node.reason = word(data.after.reason[index]);
    node.was = [];
  });
  for (const node of before) if (node.becomes >= 0) after[node.becomes].was.push(node);
  return { before, after };
}

function fusionOf([rule, absorbed, launches, bytes, code, sources, estimate]) {
  return { rule: word(rule), absorbed: absorbed.map(word), launches, bytes, code: word(code), sources: sources.map(word), estimate: data.estimates[estimate] };
}

// Nanoseconds of a node: the launch, and the longer of moving and computing.
function spent(node) {
  const launch = node.launches * data.launch;
  const memory = node.kind === "m" ? node.work : 0;
  const compute = node.kind === "c" ? node.work : 0;
  return { launch, memory, compute, all: launch + memory + compute };
}

const NOTHING = () => ({ nodes: 0, launches: 0, bytes: 0, unsized: 0, launch: 0, memory: 0, compute: 0, all: 0 });

function add(sum, other) {
  for (const key of Object.keys(sum)) sum[key] += other[key];
  return sum;
}

const costs = (node) => ({
  nodes: 1, launches: node.launches, bytes: node.bytes ?? 0, unsized: node.bytes === null ? 1 : 0, ...node.spent,
});
const total = (nodes) => nodes.reduce((sum, node) => add(sum, costs(node)), NOTHING());

// A row of the tree.  `kind` is module, alike (modules that differ in numbers alone), node (of the output), free (those
// that launch nothing), gone (what nothing has to stand for), or was (a node of the original).
function row(kind, label, parent, rest) {
  return { kind, label, parent, level: parent ? parent.level + 1 : 0, items: [], open: false, limit: 0, first: Infinity, ...rest };
}

function leaf(node, parent) {
  return row("was", node.op, parent, { node, before: costs(node), after: NOTHING(), first: node.index });
}

function nodeRow(node, parent) {
  const kept = node.was.length === 1 && !node.fusion && node.was[0].name === node.name && node.was[0].op === node.op;
  const found = row("node", node.op, parent, { node, kept, before: total(node.was), after: costs(node), first: node.index });
  if (!kept) found.items = node.was.map((was) => leaf(was, found));
  return found;
}

// A row for several that are of little interest one by one.
function held(kind, label, parent, items) {
  const found = row(kind, label, parent, { items, before: NOTHING(), after: NOTHING() });
  for (const item of items) {
    item.parent = found;
    item.level = found.level + 1;
    for (const inner of item.items) inner.level = item.level + 1;
    add(found.before, item.before);
    add(found.after, item.after);
  }
  return found;
}

function moduleRow(module, parent, nodes) {
  const label = module.name || data.head.model;
  const found = row(module.alike ? "alike" : "module", label, parent, { path: module.path, before: NOTHING(), after: NOTHING() });
  for (const child of module.children ?? []) found.items.push(moduleRow(child, found, nodes));
  const own = (module.nodes ?? []).map((index) => nodes.rowOf[index] = nodeRow(nodes.after[index], found));
  const free = own.filter((item) => !item.after.launches && !item.before.launches);
  found.items.push(...own.filter((item) => free.length < 2 || !free.includes(item)));
  found.items.sort((a, b) => a.first - b.first);
  if (free.length > 1) found.items.push(held("free", "views and shapes", found, free));
  if (module.gone) {
    const gone = module.gone.map((index) => nodes.before[index]);
    found.items.push(held("gone", "simplified away", found, gone.map((node) => nodes.goneRow[node.index] = leaf(node, found))));
  }
  for (const item of found.items) {
    add(found.before, item.before);
    add(found.after, item.after);
    found.first = Math.min(found.first, item.first);
  }
  return found;
}

const nodes = { ...decoded(), rowOf: [], goneRow: [] };
const root = moduleRow(data.tree, null, nodes);

// What a search looks into.
function textOf(item) {
  const node = item.node;
  const parts = node ? [node.op, node.name, node.fusion?.rule, ...(node.fusion?.absorbed ?? [])] : [item.label, item.path];
  return parts.filter(Boolean).join(" ").toLowerCase();
}

// The row of a node of the original: its own where it is gone or stands below a fused node, else that of what it is now.
function rowOfOriginal(node) {
  if (node.becomes < 0) return nodes.goneRow[node.index];
  const holder = nodes.rowOf[node.becomes];
  return holder.items.find((item) => item.node === node) ?? holder;
}
