// Notes on a run: features pinned, renamed, grouped. The server saves them to the run; a page from disk keeps them in
// the browser where it may, and hands them out as a file.

export class NoteBook {
  constructor(run, token) {
    this.run = run;
    this.token = token;
    this.listeners = [];
    this.status = "";
    this.version = 0;
    this.take(this.remembered() ?? run.record.notes);
  }

  listen(listener) {
    this.listeners.push(listener);
  }

  nameOf(layer, index) {
    return this.names.get(this.key(layer, index)) ?? "";
  }

  isPinned(layer, index) {
    return this.pinned.has(this.key(layer, index));
  }

  groupOf(layer, index) {
    return this.groups.get(this.key(layer, index)) ?? "";
  }

  groupNames() {
    return [...new Set(this.groups.values())];
  }

  pinnedIn(layer) {
    return [...this.pinned].map(parseKey).filter((place) => place.layer === layer).map((place) => place.index);
  }

  // All pinned features, by layer and index.
  pinnedPlaces() {
    return [...this.pinned].map(parseKey).sort((a, b) => a.layer - b.layer || a.index - b.index);
  }

  unpinAll() {
    this.pinned.clear();
    this.changed();
  }

  ungroup(places) {
    for (const { layer, index } of places) this.groups.delete(this.key(layer, index));
    this.changed();
  }

  pin(layer, index, on) {
    const key = this.key(layer, index);
    if (on) this.pinned.add(key);
    else this.pinned.delete(key);
    this.changed();
  }

  rename(layer, index, name) {
    this.put(this.names, layer, index, name);
  }

  group(layer, index, name) {
    this.put(this.groups, layer, index, name);
  }

  put(map, layer, index, text) {
    const key = this.key(layer, index);
    const clean = text.trim().slice(0, 200);
    if ((map.get(key) ?? "") === clean) return;
    if (clean) map.set(key, clean);
    else map.delete(key);
    this.changed();
  }

  key(layer, index) {
    return `${layer}.${index}`;
  }

  get empty() {
    return !this.pinned.size && !this.names.size && !this.groups.size;
  }

  // The result `notes` as it is on disk: layers by name.
  plain() {
    const place = (key) => {
      const { layer, index } = parseKey(key);
      return { layer: this.run.layers[layer].name, index };
    };
    return {
      pinned: [...this.pinned].map(place),
      names: [...this.names].map(([key, name]) => ({ ...place(key), name })),
      groups: this.groupNames().map((name) => ({
        name,
        members: [...this.groups].filter(([, group]) => group === name).map(([key]) => place(key)),
      })),
    };
  }

  take(notes) {
    this.pinned = new Set();
    this.names = new Map();
    this.groups = new Map();
    const keyOf = (item) => {
      const { layer, index } = item ?? {};
      const k = this.run.layerNumber(layer);
      return k >= 0 && Number.isInteger(index) && index >= 0 && index < this.run.layers[k].size ? `${k}.${index}` : null;
    };
    const each = (list, use) => Array.isArray(list) && list.forEach((item) => keyOf(item) && use(keyOf(item), item));
    each(notes?.pinned, (key) => this.pinned.add(key));
    each(notes?.names, (key, { name }) => this.names.set(key, String(name).slice(0, 200)));
    for (const group of Array.isArray(notes?.groups) ? notes.groups : []) {
      each(group?.members, (key) => this.groups.set(key, String(group.name).slice(0, 200)));
    }
  }

  replaceBy(notes) {
    this.take(notes);
    this.changed();
  }

  changed() {
    this.version++;
    this.save();
    for (const listener of this.listeners) listener();
  }

  async save() {
    if (!this.token) return this.remember();
    this.say("Saving…");
    try {
      const answer = await fetch(`/notes/${this.run.place}`, {
        method: "PUT",
        headers: { "Content-Type": "application/json", "X-Interbasis-Token": this.token },
        body: JSON.stringify(this.plain()),
      });
      this.say(answer.ok ? "Saved to the run." : `Not saved: ${(await answer.text()).trim()}`);
    } catch {
      this.say("Not saved: the server has stopped. Download the notes to keep them.");
    }
  }

  say(status) {
    this.status = status;
    this.onstatus?.(status);
  }

  remember() {
    try {
      localStorage.setItem(`interbasis notes ${this.run.record.digest}`, JSON.stringify(this.plain()));
      this.say("Stored in this browser. Download them to keep them permanently.");
    } catch {
      this.say("Not stored yet. Download them to keep them.");
    }
  }

  remembered() {
    if (this.token || !this.run.record.digest) return null;
    try {
      return JSON.parse(localStorage.getItem(`interbasis notes ${this.run.record.digest}`));
    } catch {
      return null;
    }
  }
}

function parseKey(key) {
  const [layer, index] = key.split(".").map(Number);
  return { layer, index };
}
