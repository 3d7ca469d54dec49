// The pictures of a message that is being written: chosen, pasted or dropped, and removed again.

import { button, el } from '../dom.js';
import { HELP, readPicture, thumbnail, TYPES } from './pictures.js';

/** A row of pictures, and the button that adds some. */
export class Tray {
  /**
   * @param {import('../main.js').App} app
   * @param {HTMLElement} field Where the message is written.
   * @param {() => string} whyNot Why the models take no pictures now; empty if they do.
   * @param {import('./pictures.js').Picture[]} [pictures] The first ones.
   */
  constructor(app, field, whyNot, pictures = []) {
    this._app = app;
    this._field = field;
    this._whyNot = whyNot;
    this._reading = 0;
    this._list = el('ul.thumbnails', { 'aria-label': 'Pictures of this message', hidden: true });
    this._problem = el('p.problem', { role: 'alert' });
    const accept = TYPES.join(',');
    this._file = el('input', { type: 'file', accept, multiple: true, hidden: true });
    this._file.addEventListener('change', () => this._take());
    this.button = button('Add pictures', () => this.choose(), { icon: 'picture', kind: 'quiet' });
    this.node = el('div.tray', {}, this._list, this._problem, this._file);
    this._set(pictures);
    this.check();
  }

  /** Ask for files, unless the models take no pictures. */
  choose() {
    if (this._takes()) this._file.click();
  }

  /** See anew whether the models take pictures. */
  check() {
    const reason = this._whyNot();
    // Not `disabled`: then a keyboard or a finger would not learn the reason.
    this.button.setAttribute('aria-disabled', String(Boolean(reason)));
    this.button.title = reason || HELP;
  }

  /** @returns {boolean} Whether the message can be sent. If not, the tray says why. */
  isReady() {
    if (this._reading) return this._say('A picture is still being read.');
    return !this.pictures.length || this._takes();
  }

  /** Remove all pictures. */
  clear() {
    this._set([]);
    this._say('');
  }

  /**
   * Take what is pasted into a node or dropped onto it.
   * @param {HTMLElement} node
   */
  listen(node) {
    node.addEventListener('paste', (event) => {
      const { files } = event.clipboardData;
      if (event.clipboardData.getData('text/plain')) return; // of tables, some programs add a picture
      if (!event.defaultPrevented && files.length) this._receive(event, files);
    });
    const mark = (event, isOver) => {
      if (!event.dataTransfer.types.includes('Files')) return;
      event.preventDefault(); // the browser would leave the page for the file
      node.classList.toggle('receives', isOver);
    };
    node.addEventListener('dragover', (event) => mark(event, true));
    node.addEventListener('dragleave', (event) => {
      if (!node.contains(event.relatedTarget)) mark(event, false);
    });
    node.addEventListener('drop', (event) => {
      const isTaken = event.defaultPrevented; // by a message that is edited inside of the node
      mark(event, false);
      if (!isTaken && event.dataTransfer.files.length) this._receive(event, event.dataTransfer.files);
    });
  }

  _receive(event, files) {
    event.preventDefault();
    if (this._takes()) this._add([...files]);
  }

  _take() {
    const files = [...this._file.files];
    this._file.value = '';
    this._field.focus();
    this._add(files);
  }

  async _add(files) {
    const faults = [];
    this._reading += 1;
    for (const file of files) {
      try {
        const picture = await readPicture(file);
        this._set([...this.pictures, picture]);
        this._app.announce(`Added ${picture.name}.`);
      } catch (error) {
        faults.push(error.message);
      }
    }
    this._reading -= 1;
    this._say(faults.join(' '));
  }

  _set(pictures) {
    this.pictures = pictures;
    this._list.replaceChildren(...pictures.map((one) => this._item(one)));
    this._list.hidden = !pictures.length;
  }

  _item(picture) {
    const label = `Remove ${picture.name}`;
    const remove = button(label, () => this._remove(picture), { icon: 'close' });
    return el('li', {}, thumbnail(picture), remove);
  }

  _remove(picture) {
    const place = this.pictures.indexOf(picture);
    this._set(this.pictures.filter((one) => one !== picture));
    this._say('');
    this._app.announce(`Removed ${picture.name}.`);
    const left = this._list.querySelectorAll('.has-icon');
    (left[Math.min(place, left.length - 1)] ?? this._field).focus();
  }

  _takes() {
    this.check();
    const reason = this._whyNot();
    this._say(reason);
    return !reason;
  }

  _say(problem) {
    this._problem.textContent = problem;
    return !problem;
  }
}
