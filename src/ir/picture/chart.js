(() => {
  const svg = document.querySelector("svg");
  const { width: w, height: h } = svg.viewBox.baseVal;
  const size = { w, h };
  const box = () => svg.getBoundingClientRect();
  let frame;
  const show = (next) => {
    frame = next;
    svg.setAttribute("viewBox", `${frame.x} ${frame.y} ${frame.w} ${frame.h}`);
  };
  const fit = () => show(framing.fitted(size, box(), false));
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
  fit();
})();
