/** What a host has started, to be ended in the reverse order. */

/** Run last to first: what was started last is ended first. */
export type Closers = (() => Promise<void> | void)[];

/** Runs a host's start. `close` ends all that was started by then, and may be called twice; a start that fails is ended before it rejects. */
export async function startWithClosers<T>(
  start: (closers: Closers, close: () => Promise<void>) => Promise<T>,
): Promise<T> {
  const closers: Closers = [];
  const close = async (): Promise<void> => {
    for (let closer = closers.pop(); closer !== undefined; closer = closers.pop()) await closer();
  };
  try {
    return await start(closers, close);
  } catch (thrown) {
    await close();
    throw thrown;
  }
}
