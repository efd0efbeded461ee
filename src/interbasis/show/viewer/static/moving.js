// Moving around in a graph: the wheel zooms about the pointer, dragging the ground moves it, + − 0 do the same from the
// keyboard. Shift and the wheel, and sideways wheels, scroll as everywhere.

const STEP = 1.15;
const LIMITS = [0.3, 4];

export function movable(view) {
  const { scroll } = view;
  scroll.addEventListener(
    "wheel",
    (event) => {
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) return;
      event.preventDefault();
      const { left, top } = scroll.getBoundingClientRect();
      zoomBy(view, STEP ** -Math.sign(event.deltaY), event.clientX - left, event.clientY - top);
    },
    { passive: false },
  );
  scroll.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.pointerType === "touch" || event.target.closest("button")) return;
    drag(scroll, event);
  });
}

// Keeps what is at (x, y) of the window there.
export function zoomBy(view, factor, x = view.scroll.clientWidth / 2, y = view.scroll.clientHeight / 2) {
  const { scroll, state, box } = view;
  if (!box) return;
  const zoom = factor === 0 ? 1 : Math.min(Math.max(state.get("zoom") * factor, LIMITS[0]), LIMITS[1]);
  const at = { x: (scroll.scrollLeft + x) / box.width, y: (scroll.scrollTop + y) / box.height };
  view.afterZoom = () => {
    scroll.scrollLeft = at.x * view.box.width - x;
    scroll.scrollTop = at.y * view.box.height - y;
    view.afterZoom = null;
  };
  state.set({ zoom: Math.round(zoom * 1000) / 1000 });
}

function drag(scroll, start) {
  const from = { left: scroll.scrollLeft, top: scroll.scrollTop };
  const move = (event) => {
    scroll.scrollLeft = from.left - (event.clientX - start.clientX);
    scroll.scrollTop = from.top - (event.clientY - start.clientY);
  };
  const end = () => {
    window.removeEventListener("pointermove", move);
    window.removeEventListener("pointerup", end);
    scroll.classList.remove("dragged");
  };
  scroll.classList.add("dragged");
  window.addEventListener("pointermove", move);
  window.addEventListener("pointerup", end);
}
