// A canvas as sharp as the screen, and its size.

/** A canvas that fills its parent. Coordinates are CSS pixels. */
export class Canvas {
  /**
   * @param {HTMLElement} parent
   * @param {Object<string, string>} props Attributes of the canvas.
   * @param {() => void} onResize
   */
  constructor(parent, props, onResize) {
    this.node = document.createElement('canvas');
    for (const [name, value] of Object.entries(props)) this.node.setAttribute(name, value);
    parent.append(this.node);
    this.context = this.node.getContext('2d');
    this.width = 0;
    this.height = 0;
    this.ratio = 1;
    this._parent = parent;
    this._observer = new ResizeObserver(() => {
      this._fit();
      onResize();
    });
    this._observer.observe(parent);
    this._fit();
  }

  /** End the watch over the size. */
  close() {
    this._observer.disconnect();
  }

  /**
   * Begin a frame: an empty canvas.
   * @returns {CanvasRenderingContext2D}
   */
  begin() {
    if (this.ratio !== devicePixelRatio) this._fit();
    const { context } = this;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    return context;
  }

  _fit() {
    this.ratio = devicePixelRatio;
    this.width = this._parent.clientWidth;
    this.height = this._parent.clientHeight;
    this.node.width = Math.max(1, Math.round(this.width * this.ratio));
    this.node.height = Math.max(1, Math.round(this.height * this.ratio));
    this.node.style.width = `${this.width}px`;
    this.node.style.height = `${this.height}px`;
  }
}
