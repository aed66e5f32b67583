(() => {
  const id = (name) => document.getElementById(name);
  const data = JSON.parse(id("data").textContent);
  const views = [...document.querySelectorAll(".view")];
  const side = id("side");
  let current = views.findIndex((view) => !view.hidden);
  let kept = null;
  const seen = views.map(() => null);

  const svg = () => views[current].firstElementChild;
  const size = () => ({ w: Number(svg().dataset.w), h: Number(svg().dataset.h) });
  const room = () => id("main").getBoundingClientRect();
  const show = (next) => {
    seen[current] = next;
    svg().setAttribute("viewBox", `${next.x} ${next.y} ${next.w} ${next.h}`);
  };
  const fit = (whole) => show(framing.fitted(size(), room(), whole));

  const element = (tag, text) => {
    const made = document.createElement(tag);
    made.textContent = text;
    return made;
  };
  const tell = (box) => {
    const all = svg();
    all.querySelectorAll(".on").forEach((e) => e.classList.remove("on"));
    if (!box) return;
    box.classList.add("on");
    const i = box.dataset.i;
    all.querySelectorAll(`.w[data-f="${i}"],.w[data-t="${i}"]`).forEach((e) => e.classList.add("on"));
    const of = data[current][i];
    const parts = [element("h2", of.names.join(", ")), element("div", of.role)];
    if (of.replicas.length > 1) parts.push(element("div", `replicas ${of.replicas.join(", ")}, alike`));
    if (of.weights.length) parts.push(element("div", `weights: ${of.bytes} bytes: ${of.weights.join(", ")}`));
    if (of.updates) parts.push(element("div", `updates ${of.updates} parameter(s)`));
    for (const [name, op, type, bytes, claim, device, replica, origin] of of.values) {
      const list = document.createElement("dl");
      list.append(element("dt", `${name} : ${type}`), element("dd", `${op} on ${device}` +
        (replica === null ? "" : `, replica ${replica}`)), element("dd", `${bytes} bytes`));
      if (claim !== null) list.append(element("dd", `claim: ${claim}`));
      if (origin !== null) list.append(element("dd", `origin: ${origin}`));
      parts.push(list);
    }
    side.replaceChildren(...parts);
  };
  const boxAt = (event) => event.target.closest && event.target.closest(".b");

  const main = id("main");
  let drag = null;
  main.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, y: event.clientY, moved: false, box: boxAt(event) };
  });
  main.addEventListener("pointermove", (event) => {
    if (!drag) {
      if (!kept && boxAt(event)) tell(boxAt(event));
      return;
    }
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (Math.abs(dx) + Math.abs(dy) > 3) drag.moved = true;
    if (!drag.moved) return;
    show(framing.moved(seen[current], room(), dx, dy));
    drag.x = event.clientX;
    drag.y = event.clientY;
  });
  window.addEventListener("pointerup", () => {
    if (drag && !drag.moved) {
      kept = drag.box === kept ? null : drag.box;
      tell(kept);
    }
    drag = null;
  });
  window.addEventListener("pointercancel", () => {
    drag = null;
  });
  main.addEventListener("wheel", (event) => {
    event.preventDefault();
    show(framing.zoomed(seen[current], size(), room(), event));
  }, { passive: false });

  const turn = (level, fold) => {
    const next = views.findIndex((v) => v.dataset.level === level && v.dataset.fold === fold);
    if (next < 0) return;
    kept = null;
    tell(null);
    views[current].hidden = true;
    current = next;
    views[current].hidden = false;
    if (seen[current]) show(framing.resized(seen[current], room()));
    else fit(false);
    label();
    find();
  };
  const here = () => views[current].dataset;
  const other = (word, pair) => (word === pair[0] ? pair[1] : pair[0]);
  const has = (level, fold) => views.some((v) => v.dataset.level === level && v.dataset.fold === fold);
  const label = () => {
    const { level, fold, title } = here();
    document.querySelector("h1").textContent = title;
    document.title = title;
    id("level").textContent = `by ${other(level, ["layers", "operators"]).slice(0, -1)}`;
    id("level").disabled = !has(other(level, ["layers", "operators"]), fold);
    id("fold").textContent = fold === "folded" ? "unfold replicas" : "fold replicas";
    id("fold").disabled = !has(level, other(fold, ["folded", "unfolded"]));
  };
  id("level").addEventListener("click", () => turn(other(here().level, ["layers", "operators"]), here().fold));
  id("fold").addEventListener("click", () => turn(here().level, other(here().fold, ["folded", "unfolded"])));
  id("fit").addEventListener("click", () => fit(true));

  // Shows one of what is found: the first, or the one at a place behind it.
  let shown = 0;
  const find = (place = 0) => {
    shown = place;
    const wanted = id("find").value.toLowerCase();
    const hits = [];
    svg().querySelectorAll(".b").forEach((box) => {
      const of = data[current][box.dataset.i];
      const text = [of.role, ...of.names, ...of.weights, ...of.values.flatMap((v) => v.slice(0, 3))];
      const hit = wanted !== "" && text.some((part) => String(part).toLowerCase().includes(wanted));
      box.classList.toggle("hit", hit);
      if (hit) hits.push(box);
    });
    id("found").textContent = wanted === "" ? "" : `${hits.length} found`;
    if (hits.length) {
      const at = hits[place % hits.length].firstElementChild;
      const f = seen[current];
      const middle = Number(at.getAttribute("x")) + Number(at.getAttribute("width")) / 2;
      show({ ...f, x: middle - f.w / 2, y: Number(at.getAttribute("y")) - f.h / 3 });
    }
  };
  id("find").addEventListener("input", () => find());
  id("find").addEventListener("keydown", (event) => {
    if (event.key === "Enter") find(shown + 1);
  });
  window.addEventListener("resize", () => show(framing.resized(seen[current], room())));
  fit(false);
  label();
})();
