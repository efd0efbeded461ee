// Finding features by label, token or layer: every word of the query has to be there.

import { el, name, replace } from "./dom.js";
import { integer } from "./format.js";

const LISTED = 40;

// Ranks up to this one are matches in a label.
const IN_LABEL = 1;

export class Search {
  constructor(page) {
    this.page = page;
    this.input = el("input", {
      type: "search",
      placeholder: "Search label, token, layer   /",
      "aria-label": "Search features by label, token or layer",
      value: page.state.get("q"),
      autocomplete: "off",
      spellcheck: "false",
      "aria-controls": "found",
      oninput: () => page.state.set({ q: this.input.value }),
      onfocus: () => this.show(),
      onkeydown: (event) => this.key(event),
    });
    this.list = el("div", {
      class: "found-list",
      id: "found",
      role: "region",
      "aria-label": "Features found",
      hidden: true,
    });
    this.element = el(
      "div",
      {
        class: "search",
        onfocusout: (event) => !this.element.contains(event.relatedTarget) && (this.list.hidden = true),
      },
      this.input,
      this.list,
    );
  }

  focus() {
    this.input.focus();
    this.input.select();
  }

  key(event) {
    if (event.key === "Escape") {
      event.stopPropagation();
      if (this.input.value) this.page.state.set({ q: "" });
      else this.input.blur();
    } else if (event.key === "Enter" && this.hits?.length) this.open(this.hits[0]);
    else if (event.key === "ArrowDown") this.list.querySelector("button")?.focus();
    else return;
    event.preventDefault();
  }

  open({ place, layer, index }) {
    this.list.hidden = true;
    this.page.select({ place, layer, index });
    requestAnimationFrame(() => this.page.panel.element.focus());
  }

  // Called when the query or the notes have changed.
  update() {
    const query = this.page.state.get("q");
    if (this.input.value !== query) this.input.value = query;
    this.hits = query.trim() ? this.find(query) : [];
    // a number is in a token of nearly every feature: what has it in its label is marked, if anything has
    const named = this.hits.filter(({ rank }) => rank <= IN_LABEL);
    for (const { view } of this.page.parts) view.nodes.markFound(named.length ? named : this.hits);
    if (document.activeElement === this.input) this.show();
  }

  show() {
    const query = this.page.state.get("q").trim();
    this.list.hidden = !query;
    if (!query) return;
    const further = this.hits.length - LISTED;
    replace(
      this.list,
      !this.hits.length &&
        el("p", { class: "hint" }, "No feature has these words in its label, layer, tokens or group."),
      this.hits.slice(0, LISTED).map((hit) => this.line(hit)),
      further > 0 && el("p", { class: "hint" }, `and ${integer(further)} more`),
    );
  }

  line(hit) {
    const { run, names } = this.page.part(hit.place);
    const walk = (event) => {
      if (event.key === "ArrowDown") event.currentTarget.nextElementSibling?.focus?.();
      else if (event.key === "ArrowUp") (event.currentTarget.previousElementSibling ?? this.input).focus();
      else if (event.key === "Escape") this.input.focus();
      else return;
      event.preventDefault();
      event.stopPropagation();
    };
    return el(
      "button",
      { type: "button", onclick: () => this.open(hit), onkeydown: walk },
      name(names.label(hit.layer, hit.index)),
      el(
        "small",
        {},
        name(run.layers[hit.layer].name),
        `, feature ${hit.index}`,
        this.page.parts.length > 1 && [" · ", name(run.title)],
        hit.token && foundIn(hit),
      ),
    );
  }

  find(query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const hits = [];
    for (const { run, names, notes } of this.page.parts) {
      run.layers.forEach((layer, k) => {
        for (let index = 0; index < layer.size; index++) {
          const text =
            `${names.label(k, index)} ${layer.name} feature ${index} ${notes.groupName(k, index)}`.toLowerCase();
          const missing = words.filter((word) => !text.includes(word));
          const tokens = missing.length ? tokensOfFeature(run, k, index) : [];
          const matches = missing.map((word) => tokens.find((token) => token.toLowerCase().includes(word)));
          if (!matches.every(Boolean)) continue;
          const label = names.known(k, index).toLowerCase();
          const rank = Math.max(...words.map((word) => nearness(word, label, text)));
          hits.push({ place: run.place, layer: k, index, token: matches[0], word: missing[0], rank });
        }
      });
    }
    return hits.sort((a, b) => a.rank - b.rank);
  }
}

// How near a match is: the label has the word by itself, has it in part, the layer or group has it, a token has it.
function nearness(word, label, text) {
  const escaped = word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const whole = /^\d+$/.test(word) ? `(?<!\\d)${escaped}(?!\\d)` : `(?<![\\p{L}\\d])${escaped}(?![\\p{L}\\d])`;
  if (new RegExp(whole, "u").test(label)) return 0;
  if (label.includes(word)) return 1;
  return text.includes(word) ? 2 : 3;
}

// Where a word was found that is not in the label: a token of its own, or part of an example.
function foundIn({ token, word }) {
  if (token.length <= 24) return [" · token ", name(token)];
  const at = token.toLowerCase().indexOf(word);
  const [from, to] = [Math.max(at - 12, 0), at + word.length + 12];
  return [
    " · example ",
    name(`${from ? "…" : ""}${token.slice(from, to).replace(/\n/g, "⏎")}${to < token.length ? "…" : ""}`),
  ];
}

// Tokens of a feature's examples, those it is most active at first, and outputs that it raises or lowers.
function tokensOfFeature(run, layer, index) {
  const key = `${layer}.${index}`;
  if (!run.tokens.has(key)) run.tokens.set(key, collectTokens(run, layer, index));
  return run.tokens.get(key);
}

function collectTokens(run, layer, index) {
  const examples = run.bands(layer, index).flatMap((band) => band.examples);
  const tokens = new Set(
    examples.map((example) => (run.record.examples === "tokens" ? example.tokens[example.active] : example.label)),
  );
  if (run.record.examples === "tokens") for (const example of examples) tokens.add(example.tokens.join(""));
  for (const effect of run.feature(layer, index)?.effects?.rows ?? []) tokens.add(effect.name);
  return [...tokens].filter(Boolean);
}
