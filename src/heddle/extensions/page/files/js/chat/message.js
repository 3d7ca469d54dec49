// Shows one message: its text, reasoning, calls, figures, and what can be done with it.

import { button, copyText, el } from '../dom.js';
import { AnswerText } from './answer_text.js';
import { cardsOf } from './cards.js';
import { endOf, figuresOf } from './figures.js';
import { thumbnail } from './pictures.js';
import { tokensOf } from './tokens.js';
import { Tray } from './tray.js';
import { branchesAt, pairOf } from './tree.js';

/** One message of the shown branch. */
export class MessageView {
  /**
   * @param {import('../main.js').App} app
   * @param {import('./session.js').Session} session
   * @param {import('./tree.js').Message} message
   */
  constructor(app, session, message) {
    this._app = app;
    this._session = session;
    this._message = message;
    const isUser = message.role === 'user';
    this._text = new AnswerText(app.api);
    this._thoughts = null;
    this._pictures = el('div.pictures', {}, ...(message.pictures ?? []).map(thumbnail));
    this._extra = el('div.extra');
    this._foot = el('footer');
    this.node = el(
      `article.message.${isUser ? 'from-user' : 'from-model'}`,
      { 'aria-label': isUser ? 'You' : (message.model ?? 'Answer') },
      this._pictures,
      this._text.node,
      this._extra,
      this._foot,
    );
    if (isUser) this._showBody(true);
    this.update();
  }

  get _isRunning() {
    return this._session.running.has(this._message.id);
  }

  /** Show the text as it is now. Called often. */
  updateText() {
    const { content, reasoning } = this._message;
    if (reasoning || this._thoughts) this._showThoughts(reasoning ?? '');
    this._text.show(content, !this._isRunning);
    this.node.classList.toggle('running', this._isRunning);
    this.node.classList.toggle('waiting', this._isRunning && !content && !reasoning);
  }

  /** Show everything anew. */
  update() {
    this.updateText();
    const message = this._message;
    if (message.role === 'user')
      this._showActions([...this._turns(), this._editButton(), this._copyButton()]);
    else this._updateAnswer();
  }

  _updateAnswer() {
    const message = this._message;
    const end = this._isRunning ? '' : endOf(message);
    this._extra.replaceChildren(
      ...(this._tokens && message.tokens ? [this._tokens] : []),
      ...cardsOf(this._session, message, this._isRunning),
      ...this._jsonState(),
      ...(end ? [el('p.end', { role: 'note' }, end)] : []),
    );
    this._text.node.hidden = Boolean(this._tokens);
    if (this._isRunning) this._showActions(this._turns());
    else this._showActions([...this._turns(), ...this._answerButtons(end)], figuresOf(message));
  }

  _showActions(actions, figures = []) {
    const texts = figures.map((one) => el('span', {}, one));
    this._foot.replaceChildren(
      figures.length ? el('p.figures', {}, ...texts) : '',
      el('div.actions', {}, ...actions),
    );
  }

  _showThoughts(reasoning) {
    if (!this._thoughts) {
      this._thoughts = new AnswerText(this._app.api);
      const summary = el('summary', {}, 'Reasoning');
      this._text.node.before(el('details.reasoning', {}, summary, this._thoughts.node));
    }
    this._thoughts.show(reasoning, !this._isRunning || Boolean(this._message.content));
  }

  /** The arrows between branches. */
  _turns() {
    const branches = branchesAt(this._session.messages, this._message);
    if (branches.length < 2) return [];
    const place = branches.indexOf(this._message);
    const arrow = (label, name, by, isOff) =>
      button(label, () => this._session.turn(this._message, by), {
        icon: name,
        kind: 'quiet',
        props: { disabled: isOff },
      });
    return [
      el(
        'span.turns',
        { role: 'group', 'aria-label': 'Branches' },
        arrow('Branch before', 'back', -1, place === 0),
        el('span.figure', {}, `${place + 1} / ${branches.length}`),
        arrow('Next branch', 'forth', 1, place === branches.length - 1),
      ),
    ];
  }

  _answerButtons(end) {
    const session = this._session;
    const message = this._message;
    const quiet = (label, name, run) => button(label, run, { icon: name, kind: 'quiet' });
    const buttons = [
      quiet('Answer again with another seed', 'redo', () => session.regenerate(message)),
      this._copyButton(),
    ];
    if (end) {
      const label = message.content || message.reasoning ? 'Continue' : 'Begin again';
      buttons.unshift(button(label, () => session.continueAnswer(message), { kind: 'small' }));
    }
    if (message.tokens?.length) buttons.push(this._tokensButton());
    if (pairOf(session.messages, message).length > 1 && session.conversation.head !== message.id) {
      buttons.push(
        button('Go on with this one', () => session.choose(message), { kind: 'small' }),
      );
    }
    return buttons;
  }

  _tokensButton() {
    const toggle = () => {
      this._tokens = this._tokens
        ? null
        : tokensOf(this._message, (text) => this._session.branchFrom(this._message, text));
      this._updateAnswer();
    };
    const props = { 'aria-pressed': String(Boolean(this._tokens)) };
    return button('Tokens', toggle, { kind: 'small', props });
  }

  _copyButton() {
    const copy = async () => {
      const isCopied = await copyText(this._message.content);
      this._app.announce(isCopied ? 'Copied.' : 'The browser does not allow copying here.');
    };
    return button('Copy', copy, { icon: 'copy', kind: 'quiet' });
  }

  _editButton() {
    return button('Edit and send again', () => this._edit(), { icon: 'edit', kind: 'quiet' });
  }

  /** Show or hide all of a user's message. */
  _showBody(isShown) {
    const { content, pictures } = this._message;
    this._pictures.hidden = !isShown || !pictures;
    this._text.node.hidden = !isShown || !content;
    this._foot.hidden = !isShown;
  }

  _edit() {
    const session = this._session;
    const { parent, pictures } = this._message;
    const whyNot = () => this._app.models.whyNoPictures(session.models);
    const field = el('textarea', {
      rows: 4,
      value: this._message.content,
      'aria-label': 'Your message',
    });
    const tray = new Tray(this._app, field, whyNot, pictures);
    const close = () => {
      form.remove();
      this._showBody(true);
    };
    const send = () => {
      if (!tray.isReady()) return;
      close();
      session.send(field.value, { pictures: tray.pictures, parent });
    };
    const form = el(
      'div.editor',
      {},
      tray.node,
      field,
      el(
        'div.choices',
        {},
        tray.button,
        button('Cancel', close, { kind: 'plain' }),
        button('Send', send, { kind: 'main' }),
      ),
    );
    form.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') close();
      else if (event.key === 'Enter' && event.target === field && !event.shiftKey && !event.isComposing)
        send();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    tray.listen(form);
    this._showBody(false);
    this._text.node.after(form);
    field.focus();
  }

  /** Whether an answer that must be JSON is JSON. */
  _jsonState() {
    const { content, finish } = this._message;
    if (!this._session.settings.schema?.trim() || finish !== 'stop') return [];
    try {
      JSON.parse(content);
      return [el('p.good', {}, 'Valid JSON')];
    } catch (error) {
      return [el('p.problem', {}, `Not valid JSON: ${error.message}`)];
    }
  }
}
