"use strict";
(() => {
  const id = (name) => document.getElementById(name);
  const data = JSON.parse(id("data").textContent);
  const views = [...document.querySelectorAll(".view")];
  const side = id("side");
  let current = views.findIndex((view) => !view.hidden);
  let kept = null;
  const frames = views.map(() => null);

  const svg = () => views[current].firstElementChild;
  const show = () => {
    const f = frames[current];
    svg().setAttribute("viewBox", `${f.x} ${f.y} ${f.w} ${f.h}`);
  };
  const fit = (whole) => {
    const box = id("main").getBoundingClientRect();
    const w = Number(svg().dataset.w);
    const h = Number(svg().dataset.h);
    const scale = whole ? Math.min(box.width / w, box.height / h, 1) : Math.min(box.width / w, 1);
    const width = box.width / scale;
    frames[current] = { x: (w - width) / 2, y: 0, w: width, h: box.height / scale };
    show();
  };

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
    const f = frames[current];
    const scale = f.w / main.clientWidth;
    if (Math.abs(event.clientX - drag.x) + Math.abs(event.clientY - drag.y) > 3) drag.moved = true;
    if (!drag.moved) return;
    f.x -= (event.clientX - drag.x) * scale;
    f.y -= (event.clientY - drag.y) * scale;
    drag.x = event.clientX;
    drag.y = event.clientY;
    show();
  });
  window.addEventListener("pointerup", () => {
    if (drag && !drag.moved) {
      kept = drag.box === kept ? null : drag.box;
      tell(kept);
    }
    drag = null;
  });
  main.addEventListener("wheel", (event) => {
    event.preventDefault();
    const f = frames[current];
    const box = main.getBoundingClientRect();
    const [u, v] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    // Some browsers count lines.
    const by = Math.exp(event.deltaY * (event.deltaMode === 1 ? 16 : 1) * 0.0015);
    f.x += f.w * u * (1 - by);
    f.y += f.h * v * (1 - by);
    f.w *= by;
    f.h *= by;
    show();
  }, { passive: false });

  const turn = (level, fold) => {
    const next = views.findIndex((v) => v.dataset.level === level && v.dataset.fold === fold);
    if (next < 0) return;
    kept = null;
    tell(null);
    views[current].hidden = true;
    current = next;
    views[current].hidden = false;
    if (!frames[current]) fit(false);
    label();
    find();
  };
  const here = () => views[current].dataset;
  const other = (word, pair) => (word === pair[0] ? pair[1] : pair[0]);
  const has = (level, fold) => views.some((v) => v.dataset.level === level && v.dataset.fold === fold);
  const label = () => {
    const { level, fold } = here();
    id("level").textContent = `by ${other(level, ["layers", "operators"]).slice(0, -1)}`;
    id("level").disabled = !has(other(level, ["layers", "operators"]), fold);
    id("fold").textContent = fold === "folded" ? "unfold replicas" : "fold replicas";
    id("fold").disabled = !has(level, other(fold, ["folded", "unfolded"]));
  };
  id("level").addEventListener("click", () => turn(other(here().level, ["layers", "operators"]), here().fold));
  id("fold").addEventListener("click", () => turn(here().level, other(here().fold, ["folded", "unfolded"])));
  id("fit").addEventListener("click", () => fit(true));

  const find = () => {
    const wanted = id("find").value.toLowerCase();
    let first = null;
    let count = 0;
    svg().querySelectorAll(".b").forEach((box) => {
      const of = data[current][box.dataset.i];
      const text = [of.role, ...of.names, ...of.weights, ...of.values.flatMap((v) => v.slice(0, 3))];
      const hit = wanted !== "" && text.some((part) => String(part).toLowerCase().includes(wanted));
      box.classList.toggle("hit", hit);
      if (hit) {
        count += 1;
        first = first || box;
      }
    });
    id("found").textContent = wanted === "" ? "" : `${count} found`;
    if (first) {
      const at = first.firstElementChild;
      const f = frames[current];
      f.x = Number(at.getAttribute("x")) + Number(at.getAttribute("width")) / 2 - f.w / 2;
      f.y = Number(at.getAttribute("y")) - f.h / 3;
      show();
    }
  };
  id("find").addEventListener("input", find);
  window.addEventListener("resize", () => {
    for (const f of frames) if (f) f.h = f.w * main.clientHeight / main.clientWidth;
    show();
  });
  fit(false);
  label();
})();
