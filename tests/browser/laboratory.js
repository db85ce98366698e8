/** Test helpers inside JupyterLab: they open, run and read notebooks by the application's API, and read editors. */

window.blocknb = {
  panel() {
    return jupyterapp.shell.currentWidget;
  },

  cell(index) {
    return this.panel().content.widgets[index];
  },

  async open(path, kernel, start) {
    const panel = await jupyterapp.commands.execute('docmanager:open', {
      path,
      factory: 'Notebook',
      ...(kernel && { kernel: { id: kernel } }),
      ...(!start && { kernelPreference: { shouldStart: false, shouldReuse: false } }),
    });
    jupyterapp.shell.activateById(panel.id);
    await panel.revealed;
    await panel.context.ready;
    await panel.sessionContext.ready;
    await panel.sessionContext.session?.kernel?.info;
  },

  /** Closes the dialogs that a failed test has left open. */
  dismiss() {
    document.querySelectorAll('.jp-Dialog .jp-mod-reject').forEach((button) => button.click());
  },

  async create() {
    const panel = await jupyterapp.commands.execute('notebook:create-new', { kernelName: 'python3' });
    jupyterapp.shell.activateById(panel.id);
    await panel.sessionContext.ready;
    await panel.sessionContext.session.kernel.info;
  },

  async add(source) {
    const cells = this.panel().content.model.sharedModel;
    cells.insertCell(cells.cells.length, { cell_type: 'code', source });
    return cells.cells.length - 1;
  },

  /** Runs a cell. Returns its error or usage message, or ''. */
  async run(index) {
    await this.show(index);
    await jupyterapp.commands.execute('notebook:run-cell');
    return this.said(index);
  },

  /** Waits until a started cell has run. Returns its error or ''. */
  async ran(index) {
    const { model } = this.cell(index);
    while (model.executionState !== 'idle' || model.executionCount === null) {
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    return this.said(index);
  },

  said(index) {
    const said = this.cell(index).model.outputs.toJSON().map((output) => {
      const { output_type: kind, text = '' } = output;
      const usage = kind === 'stream' && [text].flat().join('').includes('UsageError');
      return kind === 'error' ? output.traceback.join('\n') : usage ? [text].flat().join('') : '';
    });
    return said.filter(Boolean).join('\n');
  },

  async show(index) {
    const { content } = this.panel();
    content.activeCellIndex = index;
    content.deselectAll();
    await content.scrollToItem(index, 'start');
  },

  async restart() {
    await this.panel().sessionContext.session.kernel.restart();
  },

  async close(stop) {
    const panel = this.panel();
    if (stop) {
      await panel.sessionContext.shutdown();
    }
    panel.context.model.dirty = false;
    panel.close();
  },

  /** Returns the CodeMirror editor around an element. Newer versions store it in a tile, older ones in a view. */
  editor(element) {
    const content = element.closest('.cm-editor').querySelector('.cm-content');
    return content.cmTile?.root?.view ?? content.cmTile?.view ?? content.cmView?.rootView?.view;
  },

  /** Scrolls to a line. Returns its index among the rendered lines. */
  async reveal(view, number) {
    const { from } = view.state.doc.line(number);
    const scroller = view.scrollDOM;
    const painted = () => [...view.contentDOM.querySelectorAll('.cm-line')];
    for (;;) {
      // Again after each frame, because the editor only estimates the heights of the lines above before it has drawn them.
      const top = Math.max(0, view.lineBlockAt(from).top - scroller.clientHeight / 2);
      if (Math.abs(scroller.scrollTop - top) > scroller.clientHeight / 4) {
        scroller.scrollTop = top;
      }
      await new Promise((resolve) => requestAnimationFrame(resolve));
      const at = painted().findIndex((line) => view.posAtDOM(line) === from);
      if (at >= 0) {
        return at;
      }
    }
  },

  lines(view, wanted) {
    const found = [];
    for (const line of view.contentDOM.querySelectorAll('.cm-line')) {
      if (wanted.some((name) => line.classList.contains(name))) {
        found.push(view.state.doc.lineAt(view.posAtDOM(line)).number);
      }
    }
    return found;
  },

  litLines(view) {
    return this.lines(view, ['bnb-highlight', 'bnb-highlight-op']);
  },

  lit(index) {
    return this.lines(this.cell(index).editor.editor, ['bnb-source-highlight']);
  },
};
