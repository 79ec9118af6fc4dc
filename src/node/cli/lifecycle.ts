/** What long-running commands share: log lines beside the output, and the wish to stop. */

const ONE_WISH_MS = 500;

/** Standard error, so that standard output stays the ready line or the JSON. */
export function logLine(
  level: string,
  message: string,
  fields: Readonly<Record<string, unknown>> = {},
): void {
  const facts = Object.entries(fields).map(([name, value]) => ` ${name}=${String(value)}`);
  const prefix = level === "debug" || level === "info" ? "" : `${level}: `;
  console.error(`kedge: ${prefix}${message}${facts.join("")}`);
}

/**
 * Resolves at the first SIGINT or SIGTERM; a later one ends the process at once, after `atOnce`. Supervisors signal a whole group, so that
 * one wish arrives twice, from them and from a parent that passes it on.
 */
export function stopSignal(atOnce: () => void = () => {}): Promise<void> {
  return new Promise((resolve) => {
    let firstMs: number | null = null;
    const stop = (): void => {
      const nowMs = performance.now();
      firstMs ??= nowMs;
      if (nowMs - firstMs > ONE_WISH_MS) {
        atOnce();
        process.exit(130);
      }
      resolve();
    };
    process.on("SIGINT", stop);
    process.on("SIGTERM", stop);
  });
}
