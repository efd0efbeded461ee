// One tooltip for the page: what a box or a line is, in full, as soon as it is pointed at.

import { append, el, replace } from "./dom.js";

const AWAY = 14;

export class Tip {
  constructor() {
    this.element = el("div", { class: "tip", role: "tooltip", id: "tip", hidden: true });
    append(document.body, [this.element]);
  }

  // Beside a point of the window, inside the window.
  show(x, y, ...children) {
    replace(this.element, children);
    this.element.hidden = false;
    const { width, height } = this.element.getBoundingClientRect();
    const left = x + AWAY + width > window.innerWidth ? x - AWAY - width : x + AWAY;
    const top = y + AWAY + height > window.innerHeight ? y - AWAY - height : y + AWAY;
    this.element.style.left = `${Math.max(left, 4)}px`;
    this.element.style.top = `${Math.max(top, 4)}px`;
  }

  hide() {
    this.element.hidden = true;
  }
}
