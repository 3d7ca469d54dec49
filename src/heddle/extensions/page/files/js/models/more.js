// What only the command line does: its commands, to copy.

import { button, copyText, el } from '../dom.js';

const COMMANDS = [
  [
    'Measure which weights matter, for a better quantised model',
    'heddle imatrix MODEL TEXT.txt -o MODEL.imatrix',
  ],
  ['Quantise a model by it', 'heddle quantize MODEL MODEL.gguf --type q4_k --imatrix MODEL.imatrix'],
];

/** Commands for the shell of the server. */
export class MorePane {
  constructor() {
    const rows = COMMANDS.map(([what, command]) => rowOf(what, command));
    const hint = 'The server has no routes for these. Run them in a shell on its machine.';
    this.node = el(
      'section.pane',
      { 'aria-label': 'On the command line' },
      el('h2', {}, 'On the command line'),
      el('p.hint', {}, hint),
      ...rows,
    );
  }
}

function rowOf(what, command) {
  const code = el('code.address', {}, command);
  const copy = button(
    `Copy ${command}`,
    async () => {
      if (!(await copyText(command))) getSelection().selectAllChildren(code);
    },
    { icon: 'copy', kind: 'quiet' },
  );
  return el('div.command', {}, el('span.hint', {}, what), el('div.command-line', {}, code, copy));
}
