// What is said of the row that is chosen.

function fact(list, name, ...value) {
  if (value[0] !== "" && value[0] !== null && value[0] !== undefined) list.append(make("dt", {}, name), make("dd", {}, ...value));
}

const timeOf = (sum) => humanTime(sum.all);
const linkTo = (item, ...content) => make("button", { type: "button", class: "link", onclick: () => reveal(item) }, ...content);

function showDetails(item) {
  const facts = byId("facts");
  const more = byId("more");
  byId("details-title").textContent = item.node ? item.node.op : item.label;
  more.replaceChildren();
  if (item.node) facts.replaceChildren(...(item.kind === "node" ? ofOutput(item, more) : ofOriginal(item)));
  else facts.replaceChildren(...ofModule(item));
  drawGraphs(byId("graphs"), item);
}

function ofModule(item) {
  const list = make("dl");
  fact(list, "module", item.path ?? item.parent.path ?? "");
  if (item.kind === "alike") fact(list, "stands for", `${plural(item.items.length, "module", "modules")} that differ in numbers alone; the first is drawn`);
  const { before, after } = item;
  fact(list, "nodes", `${whole(before.nodes)} → ${whole(after.nodes)}`);
  fact(list, "launches", `${whole(before.launches)} → ${whole(after.launches)}`);
  fact(list, "moves", `${humanBytes(before.bytes)} → ${humanBytes(after.bytes)}`);
  fact(list, "predicted", `${timeOf(before)} → ${timeOf(after)}, ${percent(after.all, root.after.all)} of the model`);
  fact(list, "of which", `memory ${humanTime(after.memory)}, compute ${humanTime(after.compute)}, launches ${humanTime(after.launch)}`);
  return [list];
}

function figures(list, node) {
  if (!node.launches) return fact(list, "launches", "nothing: a view, a constant, or arithmetic with shapes");
  fact(list, "predicted", `${humanTime(node.spent.all)} at the roofline${node.side === "after" ? `, ${percent(node.spent.all, root.after.all)} of the model` : ""}`);
  fact(list, "bound by", `${BOUNDS[node.bound]} (launch ${humanTime(node.spent.launch)}, ${node.kind === "m" ? "memory" : "compute"} ${humanTime(node.work)})`);
  fact(list, "moves", node.bytes === null ? "a size depends on the data" : humanBytes(node.bytes));
  if (node.flops !== null) fact(list, "computes", humanFlops(node.flops));
}

function ofOutput(item, more) {
  const { node } = item;
  const list = make("dl");
  fact(list, "node", make("span", { class: "mono" }, node.name));
  fact(list, "module", node.scope);
  figures(list, node);
  const { fusion } = node;
  if (!fusion) {
    const what = item.kept ? "as it was" : node.was.length ? "written in another way" : "computed anew, for what was simplified";
    return [make("p", {}, node.reason ? `Not fused: ${node.reason}.` : `Stands ${what}.`), list];
  }
  fact(list, "saves", `${plural(fusion.launches, "launch", "launches")}, ${fusion.bytes === null ? "bytes that depend on the data" : humanBytes(fusion.bytes)}`);
  fact(list, "was", `${humanTime(item.before.all)} in ${plural(item.before.launches, "launch", "launches")}, ${humanBytes(item.before.bytes)}`);
  fact(list, "written in", fusion.code);
  estimated(list, fusion.estimate);
  const replaced = make("details", { open: true }, make("summary", {}, `Stands for ${plural(node.was.length, "node", "nodes")}`),
    make("ul", { class: "plain" }, item.items.map((was) => make("li", {}, linkTo(was, was.node.op, " ", make("span", { class: "dim mono" }, was.node.name))))));
  more.append(...equations(fusion), replaced);
  const inner = fusion.absorbed.length ? `, with ${fusion.absorbed.join(", ")} inside` : "";
  return [make("p", {}, make("b", { class: "pill fused" }, "fused"), ` by the rule ${fusion.rule}${inner}`), list];
}

// With --estimate: what its kernel takes, or the nodes of its function body one by one.
function estimated(list, estimate) {
  if (!estimate) return;
  const bound = { bytes: "memory", flops: "compute", instructions: "instructions", launches: "launches" }[estimate.bound];
  const time = estimate.seconds === null ? "" : `: ${humanTime(estimate.seconds * 1e9)} ${estimate.measured ? "measured" : "predicted"}${bound ? `, bound by ${bound}` : ""}`;
  fact(list, "runs from", `${estimate.source}${time}`);
  for (const one of estimate.kernels) fact(list, "launch", `${one.kernel}: ${whole(one.blocks)} × ${one.threads} threads`);
}

// The rules that had a part in a fusion as they stand in their files; the first that bears its name is open.
function equations(fusion) {
  const paths = fusion.sources.filter((path) => path in data.rules);
  const own = paths.find((path) => /^(\w+)\(/m.exec(data.rules[path])?.[1] === fusion.rule) ?? paths[0];
  return paths.map((path) => make("details", { open: path === own },
    make("summary", {}, "Equation: ", make("span", { class: "mono" }, path)), make("pre", { tabindex: "0" }, data.rules[path])));
}

function ofOriginal(item) {
  const { node } = item;
  const list = make("dl");
  fact(list, "node", make("span", { class: "mono" }, node.name));
  fact(list, "module", node.scope);
  figures(list, node);
  if (item.parent.kind === "gone") return [make("p", {}, "Of the original: simplified away, nothing has to stand for it."), list];
  fact(list, "is now in", linkTo(item.parent, item.parent.node.op, " ", make("span", { class: "dim mono" }, item.parent.node.name)));
  return [make("p", {}, "Of the original."), list];
}
