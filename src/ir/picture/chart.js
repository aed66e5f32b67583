(() => {
  // The smallest scale at which a chart is read without zooming.
  const READ = 0.75;
  const svg = document.querySelector("svg");
  const { width: w, height: h } = svg.viewBox.baseVal;
  const size = { w, h };
  const box = () => svg.getBoundingClientRect();
  const made = (parent, name, attributes) => {
    const element = document.createElementNS(svg.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent.append(element);
    return element;
  };
  let frame;
  // The part that is seen, in an overview.
  let seen = null;
  const show = (next) => {
    frame = next;
    svg.setAttribute("viewBox", `${frame.x} ${frame.y} ${frame.w} ${frame.h}`);
    seen?.setAttribute("x", frame.x);
    seen?.setAttribute("width", frame.w);
  };
  // The whole width, or what is read of it from its beginning on.
  const fit = () => {
    const all = framing.fitted(size, box(), false);
    const read = { x: 0, y: 0, w: box().width / READ, h: box().height / READ };
    show(read.w < all.w ? read : all);
    return read.w < all.w;
  };
  // A chart that is wider than the window has an overview without words below it, which moves it.
  const overview = () => {
    const panels = [...svg.querySelectorAll(".g")].map((panel) => panel.getBBox());
    const top = Math.min(...panels.map((panel) => panel.y));
    const height = Math.max(...panels.map((panel) => panel.y + panel.height)) - top;
    const map = made(document.body, "svg", {
      id: "map", preserveAspectRatio: "none", viewBox: `0 ${top} ${w} ${height}`,
    });
    map.append(...[...svg.children].map((part) => part.cloneNode(true)));
    seen = made(map, "rect", { id: "seen", y: top, height });
    const move = (event) => {
      if (!event.buttons) return;
      const place = map.getBoundingClientRect();
      show({ ...frame, x: (event.clientX - place.left) / place.width * w - frame.w / 2 });
    };
    map.addEventListener("pointerdown", move);
    map.addEventListener("pointermove", move);
  };
  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    show(framing.zoomed(frame, size, box(), event));
  }, { passive: false });
  let last = null;
  svg.addEventListener("pointerdown", (event) => {
    last = event;
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!last) return;
    show(framing.moved(frame, box(), event.clientX - last.clientX, event.clientY - last.clientY));
    last = event;
  });
  for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, () => (last = null));
  svg.addEventListener("dblclick", fit);
  window.addEventListener("resize", () => show(framing.resized(frame, box())));
  if (fit()) {
    overview();
    fit();
  }
})();
