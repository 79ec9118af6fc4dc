/** Calls to a store that may answer at once or later, handled alike. */

import type { MaybePromise } from "../store/types.ts";

/** `then` for what may be there already. */
export function after<T>(value: MaybePromise<T>, act: (value: T) => void): MaybePromise<void> {
  if (value instanceof Promise) return value.then(act);
  act(value);
}

/** Does `act`; what it throws, now or later, goes to `failed`. */
export function guarded(
  act: () => MaybePromise<void>,
  failed: (thrown: unknown) => void,
): MaybePromise<void> {
  try {
    const done = act();
    return done instanceof Promise ? done.catch(failed) : done;
  } catch (thrown) {
    failed(thrown);
  }
}

/** Does `act` after `work`, at once if that is over already. */
export function finallyDo(work: MaybePromise<void>, act: () => void): void {
  if (work instanceof Promise) void work.then(act);
  else act();
}

/** One-shot timers of the host. */
export interface Timers {
  setTimeout(callback: () => void, delayMs: number): unknown;
  clearTimeout(handle: unknown): void;
}
