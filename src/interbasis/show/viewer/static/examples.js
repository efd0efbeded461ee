// Dataset examples of a feature: tokens coloured by activation, pictures, or rows of inputs.

import { diverging } from "./colours.js";
import { el, name } from "./dom.js";
import { decimal, visible } from "./format.js";

const PICTURE = /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$/;

export function exampleBands(bands, kind) {
  const examples = bands.flatMap((band) => band.examples);
  const values =
    kind === "tokens" ? examples.flatMap(({ activations }) => activations) : examples.map(({ value }) => value);
  const largest = values.reduce((maximum, value) => Math.max(maximum, Math.abs(value)), 1e-300);
  const shown = { tokens: (example) => tokenExample(example, largest), images: imageExample, rows: rowExample }[kind];
  return bands.map((band, k) =>
    el(
      "details",
      { class: "band", open: k === 0 || k === bands.length - 1 },
      el("summary", {}, name(band.name), el("small", {}, valueRange(band.examples))),
      el("div", { class: kind === "images" ? "pictures" : "" }, band.examples.map(shown)),
    ),
  );
}

function valueRange(examples) {
  const values = examples.map(({ value }) => value);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return low === high ? `activation ${decimal(low)}` : `activations ${decimal(low)} to ${decimal(high)}`;
}

function tokenExample({ tokens, activations, active, value, sample, position }, largest) {
  return el(
    "p",
    {
      class: tokens.some((token) => /\s/.test(token)) ? "tokens" : "tokens apart",
      title: `sample ${sample}, position ${position}: ${decimal(value)}`,
    },
    tokens.map((token, k) =>
      el(
        "span",
        {
          class: k === active ? "token active" : "token",
          style: { "background-color": diverging(activations[k], largest) },
          title: `activation ${decimal(activations[k])}`,
        },
        visible(token),
      ),
    ),
  );
}

function imageExample({ image, label, value, sample, field }) {
  const text = label || `sample ${sample}`;
  const place =
    field &&
    `, depends on the part from ${field.map((share) => `${Math.round(100 * share)} %`).join(", ")} ` +
      "(left, top, right, bottom)";
  return el(
    "figure",
    {},
    PICTURE.test(image)
      ? el("img", { src: image, alt: text, loading: "lazy" })
      : el("span", { class: "no-picture" }, "no picture"),
    el("figcaption", { title: `sample ${sample}${place || ""}` }, name(text), el("small", {}, decimal(value))),
  );
}

function rowExample({ inputs, names, label, value, sample }) {
  const short = inputs
    .slice(0, 12)
    .map((input, place) => (names.length ? `${names[place]} ` : "") + decimal(input))
    .join(", ");
  return el(
    "p",
    { class: "row", title: `sample ${sample}` },
    name(`(${short}${inputs.length > 12 ? ", …" : ""})`),
    label && [" → ", name(label)],
    el("small", {}, decimal(value)),
  );
}
