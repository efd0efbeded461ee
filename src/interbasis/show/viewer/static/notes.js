// Notes on a run: features pinned, renamed, grouped. The server saves them to the run; a page from disk keeps them in
// the browser where it may, and hands them out as a file. A save names the version of the notes that it replaces. Where
// another page has saved since, the server refuses it, and both sets of notes are merged and saved again.

const LONGEST_TEXT = 10000; // as viewer/notes.py has it; fields take 200 characters, and merged texts are joined
const MAX_MERGES = 50; // of one save

export class NoteBook {
  constructor(run, token) {
    this.run = run;
    this.token = token;
    this.listeners = [];
    this.status = "";
    this.onstatus = null;
    this.pinned = new Set();
    this.names = new Map();
    this.groups = new Map();
    this.version = 0;
    this.stored = run.record.notes_version;
    this.base = this.read(run.record.notes); // what the server has, as far as this page knows
    this.take(this.remembered() ?? run.record.notes);
  }

  listen(listener) {
    this.listeners.push(listener);
  }

  customName(layer, index) {
    return this.names.get(this.key(layer, index)) ?? "";
  }

  isPinned(layer, index) {
    return this.pinned.has(this.key(layer, index));
  }

  groupName(layer, index) {
    return this.groups.get(this.key(layer, index)) ?? "";
  }

  groupNames() {
    return [...new Set(this.groups.values())];
  }

  pinnedIn(layer) {
    return [...this.pinned]
      .map(parseKey)
      .filter((place) => place.layer === layer)
      .map((place) => place.index);
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
    const clean = text.trim().slice(0, LONGEST_TEXT);
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
    ({ pinned: this.pinned, names: this.names, groups: this.groups } = this.read(notes));
  }

  // Notes as they are on disk, as sets and maps by key; features that the run does not have are left out.
  read(notes) {
    const pinned = new Set(),
      names = new Map(),
      groups = new Map();
    const itemKey = (item) => {
      const { layer, index } = item ?? {};
      const k = this.run.layerNumber(layer);
      return k >= 0 && Number.isInteger(index) && index >= 0 && index < this.run.layers[k].size
        ? `${k}.${index}`
        : null;
    };
    const forKnown = (list, use) =>
      Array.isArray(list) && list.forEach((item) => itemKey(item) && use(itemKey(item), item));
    forKnown(notes?.pinned, (key) => pinned.add(key));
    forKnown(notes?.names, (key, { name }) => names.set(key, String(name).slice(0, LONGEST_TEXT)));
    for (const group of Array.isArray(notes?.groups) ? notes.groups : []) {
      forKnown(group?.members, (key) => groups.set(key, String(group.name).slice(0, LONGEST_TEXT)));
    }
    return { pinned, names, groups };
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

  // Saves the newest notes, one request at a time: two at once would be of one version, and refuse each other.
  async save() {
    if (!this.token) return this.remember();
    this.unsaved = true;
    if (this.saving) return;
    this.saving = true;
    this.say("Saving…");
    try {
      this.say(await this.saved());
    } catch {
      this.say("Not saved: the server has stopped. Download the notes to keep them.");
    } finally {
      this.saving = false;
    }
  }

  // Saves until nothing has changed meanwhile; returns what became of it.
  async saved() {
    let merges = 0;
    while (this.unsaved) {
      this.unsaved = false;
      const sent = this.plain();
      const answer = await fetch(`notes/${this.run.place}`, {
        method: "PUT",
        headers: {
          "Content-Type": "application/json",
          "X-Interbasis-Token": this.token,
          "X-Interbasis-Graph": this.run.record.digest,
          "If-Match": `"${this.stored}"`,
        },
        body: JSON.stringify(sent),
      });
      if (answer.status === 409 && merges++ < MAX_MERGES) this.merge(await answer.json(), answerVersion(answer));
      else if (answer.ok) [this.base, this.stored] = [this.read(sent), answerVersion(answer)];
      else if (answer.status === 409) return "Not saved: another page is saving, too; change something to try again.";
      else return `Not saved: ${(await answer.text()).trim()}`;
    }
    return merges ? "Saved to the run, together with changes from another page." : "Saved to the run.";
  }

  // What was changed here since the last save is changed in the notes of the other page, too. Where both changed a
  // name or a group, both texts stay.
  merge(notes, stored) {
    const field = document.activeElement;
    // what is being typed counts, and fields are drawn again
    if (field instanceof HTMLElement && field.closest(".notes")) field.blur();
    const newest = this.read(notes);
    for (const key of this.pinned) if (!this.base.pinned.has(key)) newest.pinned.add(key);
    for (const key of this.base.pinned) if (!this.pinned.has(key)) newest.pinned.delete(key);
    for (const kind of ["names", "groups"]) mergeTexts(this.base[kind], this[kind], newest[kind]);
    this.base = this.read(notes);
    this.stored = stored;
    Object.assign(this, newest);
    this.version++;
    this.unsaved = true;
    for (const listener of this.listeners) listener();
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

function mergeTexts(base, mine, newest) {
  for (const key of new Set([...base.keys(), ...mine.keys()])) {
    const [before, here, there] = [base, mine, newest].map((texts) => texts.get(key) ?? "");
    if (here === before) continue;
    if (there === before || there === "") {
      if (here) newest.set(key, here);
      else newest.delete(key);
    } else {
      newest.set(key, joined(there, here));
    }
  }
}

// Two texts for one thing, each of them once.
function joined(there, here) {
  if (there.includes(here)) return there;
  return here.includes(there) ? here : `${there} / ${here}`.slice(0, LONGEST_TEXT);
}

function answerVersion(answer) {
  return (answer.headers.get("ETag") ?? "").replaceAll('"', "");
}

function parseKey(key) {
  const [layer, index] = key.split(".").map(Number);
  return { layer, index };
}
