// Reads that wait: the answer to an older one must not replace that of a newer one.

/** Counts the reads of one thing. */
export class Latest {
  constructor() {
    this._begun = 0;
  }

  /**
   * Begin a read, or drop those that were begun.
   * @returns {() => boolean} Whether no other read has begun since.
   */
  begin() {
    const mine = ++this._begun;
    return () => mine === this._begun;
  }
}
