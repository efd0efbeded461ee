// Dataset examples of a feature: tokens coloured by activation, pictures, or rows of inputs.

import { diverging } from "./colours.js";
import { el, name } from "./dom.js";
import { decimal } from "./format.js";

const PICTURE = /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$/;

export function exampleBands(bands, kind) {
  const largest = Math.max(...bands.flatMap((band) => band.examples.flatMap((example) => sizes(example))), 1e-300);
  return bands.map((band, at) =>
    el(
      "details", { class: "band", open: at === 0 || at === bands.length - 1 },
      el("summary", {}, name(band.name), el("small", {}, rangeOf(band.examples))),
      el("div", { class: kind === "images" ? "pictures" : "" }, band.examples.map((example) => exampleOf(example, largest))),
    ),
  );
}

function sizes(example) {
  return [Math.abs(example.value ?? 0), ...(example.activations ?? []).map(Math.abs)];
}

function rangeOf(examples) {
  const values = examples.map(({ value }) => value).filter(Number.isFinite);
  if (!values.length) return "none";
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return low === high ? `activation ${decimal(low)}` : `activations ${decimal(low)} to ${decimal(high)}`;
}

function exampleOf(example, largest) {
  if (Array.isArray(example.tokens)) return tokensOf(example, largest);
  if (example.image !== undefined) return pictureOf(example);
  return rowOf(example);
}

function tokensOf({ tokens, activations = [], active, value, sample, position }, largest) {
  return el(
    "p", { class: tokens.some((token) => /\s/.test(token)) ? "tokens" : "tokens apart", title: `sample ${sample}, position ${position}: ${decimal(value)}` },
    tokens.map((token, at) =>
      el(
        "span",
        {
          class: at === active ? "token active" : "token",
          style: { "background-color": diverging(activations[at] ?? 0, largest) },
          title: `activation ${decimal(activations[at])}`,
        },
        shownToken(token),
      ),
    ),
  );
}

// Line breaks would tear the text apart: they are shown as a sign.
function shownToken(token) {
  return String(token).replace(/\n/g, "⏎").replace(/\t/g, "⇥");
}

function pictureOf({ image, label, value, sample }) {
  const text = label === undefined ? `sample ${sample}` : String(label);
  return el(
    "figure", {},
    PICTURE.test(image) ? el("img", { src: image, alt: text, loading: "lazy" }) : el("span", { class: "no-picture" }, "no picture"),
    el("figcaption", { title: `sample ${sample}` }, name(text), el("small", {}, decimal(value))),
  );
}

function rowOf({ inputs = [], label, value, sample }) {
  const short = inputs.slice(0, 12).map((input) => (typeof input === "number" ? decimal(input) : String(input))).join(", ");
  return el(
    "p", { class: "row", title: `sample ${sample}` },
    name(`(${short}${inputs.length > 12 ? ", …" : ""})`), label !== undefined && [" → ", name(String(label))], el("small", {}, decimal(value)),
  );
}
