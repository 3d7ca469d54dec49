// The field for the next message.

import { button, el } from '../dom.js';
import { Tray } from './tray.js';

const TALLEST = 240;

/** The field, with the button that sends or stops. */
export class Composer {
  /**
   * @param {import('../main.js').App} app
   * @param {{send: (text: string, pictures: Object[]) => boolean, stop: () => void,
   *   whyNoPictures: () => string}} actions `send` returns whether it takes the message.
   */
  constructor(app, { send, stop, whyNoPictures }) {
    this._send = send;
    this._stop = stop;
    this.field = el('textarea', {
      rows: 1,
      dir: 'auto',
      placeholder: 'Message',
      'aria-label': 'Message',
      oninput: () => this._grow(),
      onkeydown: (event) => this._press(event),
    });
    this.tray = new Tray(app, this.field, whyNoPictures);
    this._button = el('button.main.has-icon', { type: 'submit' });
    this.node = el(
      'form.composer',
      { onsubmit: (event) => this._submit(event) },
      el('div.box', {}, this.tray.node, this.tray.button, this.field, this._button),
      el('p.hint', {}, 'Enter sends, Shift+Enter begins a line, Escape stops.'),
    );
    this.setRunning(false);
  }

  /** @param {boolean} isRunning */
  setRunning(isRunning) {
    if (this._isRunning === isRunning) return;
    this._isRunning = isRunning;
    const fresh = button(isRunning ? 'Stop' : 'Send', () => {}, {
      icon: isRunning ? 'stop' : 'send',
    });
    this._button.replaceChildren(...fresh.childNodes);
    this._button.setAttribute('aria-label', fresh.getAttribute('aria-label'));
    this._button.title = fresh.title;
  }

  _press(event) {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!this._isRunning) this._submit(event);
  }

  _submit(event) {
    event.preventDefault();
    if (this._isRunning) {
      this._stop();
      return;
    }
    const text = this.field.value;
    const { pictures } = this.tray;
    if (!this.tray.isReady() || !(text.trim() || pictures.length)) return;
    if (!this._send(text, pictures)) return;
    this.tray.clear();
    this.field.value = '';
    this._grow();
  }

  _grow() {
    this.field.style.height = 'auto';
    this.field.style.height = `${Math.min(this.field.scrollHeight, TALLEST)}px`;
  }
}
