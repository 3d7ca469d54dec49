// The view of engines at work: lanes of slots, steps, and the figures around them.

import { button, el } from '../dom.js';
import { count, many } from '../format.js';
import { KINDS } from '../sight/colours.js';
import { Feed } from '../sight/feed.js';
import { Figures } from '../sight/figures.js';
import { SightRecord } from '../sight/record.js';
import { RequestPanel } from '../sight/request.js';
import { LimitsBox, MemoryBox, QueueBox } from '../sight/side.js';
import { SlotTable } from '../sight/table.js';
import { Timeline } from '../sight/timeline.js';
import { TreeBox } from '../sight/tree.js';
import { Viewport, ZOOMS } from '../sight/viewport.js';

const FIGURES_MS = 1000;
const PANEL_MS = 250;

/**
 * Fill `root` with the view.
 * @param {HTMLElement} root
 * @param {import('../main.js').App} app
 * @returns {() => void} Ends the view.
 */
export function mount(root, app) {
  const view = new SightView(root, app);
  return () => view.close();
}

class SightView {
  constructor(root, app) {
    this._app = app;
    this._record = new SightRecord();
    this._viewport = new Viewport(this._record);
    this._only = '';
    this._chosen = null;
    const choose = (model, request) => this._choose(model, request);
    this._timeline = new Timeline(this._record, this._viewport, {
      shown: () => this._models(),
      choose,
      moved: () => this._showControls(),
    });
    this._figures = new Figures();
    this._panel = new RequestPanel(() => this._choose('', -1));
    this._boxes = [new QueueBox(), new MemoryBox(), new LimitsBox(app)];
    this._tree = new TreeBox(app, () => this._models().map((one) => one.name));
    this._table = new SlotTable(choose);
    root.append(this._build());
    this._feed = new Feed(app.api, this._record, (trouble) => this._onTrouble(trouble));
    this._removers = this._shortcuts();
    this._showControls();
    this._timers = [
      setInterval(() => this._showFigures(), FIGURES_MS),
      setInterval(() => this._showPanel(), PANEL_MS),
    ];
  }

  /** End the view. */
  close() {
    this._feed.close();
    for (const timer of this._timers) clearInterval(timer);
    for (const remove of this._removers) remove();
    for (const one of [this._timeline, this._figures, this._panel, this._tree]) one.close();
  }

  _build() {
    const legend = KINDS.map(([name, words]) => el('li', {}, el(`i.mark.k-${name}`), words));
    this._trouble = el('p.problem', { role: 'alert' });
    this._lost = el('span.lost', { hidden: true });
    return el(
      'div.sight',
      {},
      this._figures.node,
      el(
        'div.tools',
        {},
        this._controls(),
        el('ul.legend', { 'aria-label': 'Legend' }, ...legend),
        this._lost,
      ),
      this._trouble,
      el('div.stage', {}, this._timeline.node, this._panel.node),
      el('div.panes', {}, ...this._boxes.map((one) => one.node), this._tree.node),
      this._table.node,
    );
  }

  _controls() {
    this._pause = button('Pause', () => this._toggle(), { kind: 'small' });
    this._zooms = ZOOMS.map((seconds) =>
      button(seconds === 60 ? '1 min' : `${seconds} s`, () => this._zoom(seconds), { kind: 'small' }),
    );
    this._select = el('select', { onchange: () => this._show(this._select.value) });
    this._selectBox = el('label.only', { hidden: true }, el('span.unseen', {}, 'Shown models'), this._select);
    const zooms = el('span.zooms', { role: 'group', 'aria-label': 'Time shown' }, ...this._zooms);
    return el('div.controls', {}, this._selectBox, zooms, this._pause);
  }

  _models() {
    const all = [...this._record.models.values()];
    return this._only ? all.filter((one) => one.name === this._only) : all;
  }

  _show(name) {
    this._only = name;
    this._figures.clear();
    this._timeline.touch();
    this._tree.refresh();
    this._showFigures();
  }

  _zoom(seconds) {
    this._viewport.zoom(seconds);
    this._timeline.touch();
    this._showControls();
  }

  _toggle() {
    this._viewport.isPaused = !this._viewport.isPaused;
    this._timeline.touch();
    this._showControls();
  }

  _showControls() {
    const { isPaused, seconds } = this._viewport;
    this._pause.textContent = isPaused ? 'Go on' : 'Pause';
    this._pause.setAttribute('aria-pressed', String(isPaused));
    ZOOMS.forEach((one, place) => {
      this._zooms[place].setAttribute('aria-pressed', String(one === seconds));
    });
  }

  _choose(model, request) {
    this._chosen = model ? { model, request } : null;
    this._timeline.mark(this._chosen);
    this._panel.node.hidden = !this._chosen;
    this._showPanel();
  }

  _showPanel() {
    if (!this._chosen || document.hidden) return;
    const { model, request } = this._chosen;
    this._panel.show(this._record.models.get(model), request, this._record.now);
  }

  _showFigures() {
    if (document.hidden) return;
    const models = this._models();
    const states = models.map((one) => one.state).filter(Boolean);
    this._figures.show(states);
    for (const one of this._boxes) one.show(models);
    this._table.show(models, this._figures.texts);
    this._timeline.describe(inWords(models));
    const lost = models.reduce((sum, one) => sum + one.lost, 0);
    this._lost.hidden = !lost;
    this._lost.textContent = `${many(lost, 'step')} lost: this page or the way to it was too slow`;
    this._showNames();
  }

  _showNames() {
    const names = [...this._record.models.keys()];
    const known = names.join('\n');
    if (this._names === known) return;
    this._names = known;
    if (!names.includes(this._only)) this._only = '';
    const options = [['', 'All models'], ...names.map((one) => [one, one])];
    this._select.replaceChildren(...options.map(([value, text]) => el('option', { value }, text)));
    this._select.value = this._only;
    this._selectBox.hidden = names.length < 2;
    this._tree.refresh();
  }

  _onTrouble(trouble) {
    this._trouble.textContent = trouble;
    if (trouble) return;
    this._figures.clear();
    this._showFigures();
  }

  _shortcuts() {
    const { shortcuts } = this._app;
    const next = (by) => () => {
      const place = ZOOMS.findIndex((one) => one <= this._viewport.seconds);
      this._zoom(ZOOMS[Math.min(ZOOMS.length - 1, Math.max(0, place + by))]);
    };
    return [
      shortcuts.add('P', 'Pause or go on', () => this._toggle()),
      shortcuts.add('+', 'Show less time', next(1)),
      shortcuts.add('-', 'Show more time', next(-1)),
      shortcuts.add('Escape', 'Close the request', () => {
        if (!this._chosen) return false;
        this._choose('', -1);
      }),
    ];
  }
}

function inWords(models) {
  const parts = models.map(({ name, runs, state }) => {
    if (!state) return `${name}: no figures yet`;
    const slots = `${count(state.running)} of ${many(runs.length, 'slot')} run`;
    const rate = `${count(state.tokens_per_second)} tokens per second`;
    return `${name}: ${slots}, ${count(state.waiting)} wait, ${rate}`;
  });
  return `Slots over time. ${parts.join('. ')}. The table below has the same.`;
}
