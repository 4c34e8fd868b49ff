// The answer at the top, and the tables below the modules.

const MOST_HOT = 15;

function showHead() {
  const { head } = data;
  byId("model").textContent = head.model + (head.output ? ` → ${head.output}` : "");
  const sizes = head.sizes || (head.shapes.length ? `at ${head.shapes.join(" ")}` : "");
  byId("setting").textContent = [head.target, sizes, `times predicted on ${head.card}`].filter(Boolean).join(" · ");
  const verdict = byId("verdict");
  verdict.dataset.verdict = head.verdict;
  verdict.textContent = `${{ equal: "✓", mismatch: "✗" }[head.verdict] ?? "!"} ${head.proof[0].toUpperCase()}${head.proof.slice(1)}`;
  byId("notes").append(...head.proofNotes.map((note) => make("li", {}, note)));
  const unsized = head.unsized.some(Boolean) ? `without ${whole(head.unsized[0])} → ${plural(head.unsized[1], "launch", "launches")} whose sizes nothing tells before it runs` : "";
  byId("figures").append(
    headline("Launches", head.launches, whole),
    headline("Bytes moved", head.bytes, humanBytes, unsized),
    headline(`Predicted time`, [root.before.all, root.after.all], humanTime),
    headline("Nodes", head.nodes, whole),
  );
  byId("left").append(...leftOver());
}

function headline(name, [before, after], show, note = "") {
  const longest = Math.max(before, after);
  return make("div", {}, make("dt", {}, name),
    make("dd", {}, make("span", { class: "number" }, `${show(before)} → ${show(after)}`), ` ${change(before, after)}`,
      bar([["bar-before", before]], longest), bar([["bar-after", after]], longest), note && make("span", { class: "dim" }, note)));
}

// One sentence: what is left, and why.
function leftOver() {
  const fused = nodes.after.filter((node) => node.fusion && node.launches);
  const rest = data.remaining;
  const time = fused.reduce((sum, node) => sum + node.spent.all, 0);
  if (!root.after.launches) return ["Nothing is launched any more."];
  const said = [`${plural(fused.length, "fused node takes", "fused nodes take")} ${percent(time, root.after.all)} of the time`];
  for (const each of rest.slice(0, 3)) said.push(`${whole(each.nodes)} ${each.op} ${percent(each.share, 1)} (${each.reason})`);
  const more = rest.slice(3).reduce((sum, each) => sum + each.nodes, 0);
  if (more) said.push(`${plural(more, "other", "others")} ${percent(rest.slice(3).reduce((sum, each) => sum + each.share, 0), 1)}`);
  return [make("b", {}, `${plural(root.after.launches, "launch is", "launches are")} left: `), `${said.join("; ")}.`];
}

// A table; columns are [heading, class], rows are lists of cells.
function table(columns, rows, caption = "") {
  return make("table", {}, caption && make("caption", {}, caption),
    make("thead", {}, make("tr", {}, columns.map(([heading, name]) => make("th", { scope: "col", class: name || null }, heading)))),
    make("tbody", {}, rows.map((cells) => make("tr", {}, cells.map((cell, index) => make("td", { class: columns[index][1] || null }, ...[cell].flat()))))));
}

function showHot() {
  const sums = data.hot.map((each) => ({ ...each, sum: total(each.nodes.map((index) => nodes.after[index])) }));
  const longest = Math.max(...sums.map((each) => each.sum.all), 0);
  const line = (each) => {
    const first = nodes.rowOf[each.nodes[0]];
    const name = each.op.replace(/^onnxfuse\./, "");
    const bound = ["memory", "compute", "launch"].reduce((most, name) => (each.sum[name] > each.sum[most] ? name : most), "launch");
    return [
      [each.rule ? make("b", { class: "pill fused" }, "fused") : "", each.rule ? " " : "", linkTo(first, name), ` ${each.where}`],
      whole(each.nodes.length), [bar(segments(each.sum), longest)], humanTime(each.sum.all), percent(each.sum.all, root.after.all), bound === "launch" ? "launches" : bound,
    ];
  };
  const columns = [["Op and module", ""], ["nodes", "number"], ["compared", "wide"], ["time", "number"], ["share", "number"], ["bound by", ""]];
  showRows(byId("hot"), columns, sums, line, MOST_HOT, "launches of the output, layers that are alike together");
}

// A table of the first rows, and a button for the others.
function showRows(host, columns, all, line, most, caption) {
  const few = (count) => host.replaceChildren(table(columns, all.slice(0, count).map(line), caption),
    count < all.length ? make("button", { type: "button", class: "more", onclick: () => few(all.length) }, `Show ${whole(all.length - count)} more`) : "");
  few(most);
}

function showRemaining() {
  const host = byId("remaining");
  if (!data.remaining.length) return void host.append(make("p", {}, "Everything that is launched was fused."));
  host.append(table([["Op", ""], ["nodes", "number"], ["compared", "wide"], ["of the time", "number"], ["why", ""]],
    data.remaining.map((each) => [each.op, whole(each.nodes), [bar([["bar-before", each.share]], data.remaining[0].share)], percent(each.share, 1), each.reason])));
}

function showMisses() {
  const host = byId("misses");
  if (!data.misses.length) return void host.append(make("p", {}, "Nothing came near a rule that it does not fit."));
  const line = (each) => {
    const rows = each.nodes.map((index) => rowOfOriginal(nodes.before[index]));
    const where = `${each.where.slice(0, 3).join(", ")}${each.where.length > 3 ? ` and ${each.where.length - 3} more` : ""}`;
    return [whole(each.gain), whole(each.count), [rows[0] ? linkTo(rows[0], each.rule) : each.rule],
      [where, each.code ? make("span", { class: "dim" }, ` ${each.code}`) : ""], [each.reason, " ", make("span", { class: "dim mono" }, each.source)]];
  };
  showRows(host, [["launches to gain", "number"], ["places", "number"], ["Rule", ""], ["where", ""], ["what stopped it", ""]], data.misses, line, 25, "most to gain first");
}

function showRest() {
  const { head } = data;
  byId("left-out-section").hidden = !data.leftOut.length;
  byId("left-out").append(table([["Rule", ""], ["where", ""], ["why", ""]], data.leftOut.map((each) => [each.rule, each.where, each.reason])));
  const kernels = Object.entries(head.kernels).map(([op, source]) => `${op} (${source})`);
  const lines = [...head.runs.map((line) => line[0].toUpperCase() + line.slice(1))];
  if (kernels.length) lines.push(`Kernels of onnxfuse for ${kernels.join(", ")}`);
  const bodies = Object.entries(head.bodies).map(([op, reason]) => `${op} runs from its function body: ${reason}`);
  byId("runs").append(make("ul", {}, [...lines, ...bodies].map((line) => make("li", {}, line))));
}
