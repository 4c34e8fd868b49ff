// Puts everything in its place; the fusion that saves most is chosen at first.

showHead();
opened();
tree.onchoose = showDetails;
const best = nodes.rowOf.filter((item) => item.node.fusion).sort((a, b) => (b.before.all - b.after.all) - (a.before.all - a.after.all))[0] ?? root;
openAround(best);
renderTree();
choose(best);
showHot();
showRemaining();
showMisses();
showRest();

byId("search").addEventListener("input", (event) => search(event.target.value));
byId("order").addEventListener("change", (event) => { tree.order = event.target.value; renderTree(); });
byId("collapse").addEventListener("click", () => { close(root); renderTree(); focusRow(root.element); });
document.documentElement.dataset.ready = String(Math.round(performance.now()));
