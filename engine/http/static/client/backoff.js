/** Delays of successive attempts, each spread by +-jitter so that clients cut off together do not come back together. */
export class Backoff {
  step = 0; // 0 again after a success

  constructor(delaysMs = [1000, 2000, 5000, 10_000], jitter = 0.3) {
    this.delaysMs = delaysMs;
    this.jitter = jitter;
  }

  /** The next delay. @param {number} [random] uniform in [0, 1) */
  next(random = Math.random()) {
    const base = this.delaysMs[Math.min(this.step++, this.delaysMs.length - 1)];
    return Math.round(base * (1 + this.jitter * (2 * random - 1)));
  }
}
