/** Metrics of several processes as one page of Prometheus text: every series carries the process it comes from. */

interface Family {
  /** HELP and TYPE lines. */
  readonly head: string[];
  readonly samples: string[];
}

/**
 * Each series of each page with the label `process` in front; a family's lines stand together, as the format wants them. Labelled and not
 * summed: a process that begins again is a counter reset of its own series, which `rate` understands, where a sum would jump.
 */
export function mergeMetrics(pages: ReadonlyMap<string, string>): string {
  const families = new Map<string, Family>();
  for (const [process, page] of pages) {
    let family: Family | null = null;
    for (const line of page.split("\n")) {
      if (line === "") continue;
      if (line.startsWith("# ")) family = headOf(line, families);
      else family?.samples.push(labelled(line, process));
    }
  }
  const lines = [...families.values()].flatMap(({ head, samples }) => [...head, ...samples]);
  return `${lines.join("\n")}\n`;
}

function headOf(line: string, families: Map<string, Family>): Family {
  const name = line.split(" ", 3)[2] ?? "";
  let family = families.get(name);
  if (family === undefined) {
    family = { head: [], samples: [] };
    families.set(name, family);
  }
  if (!family.head.includes(line)) family.head.push(line);
  return family;
}

function labelled(line: string, process: string): string {
  const name = /^[^{\s]+/.exec(line)?.[0] ?? "";
  const rest = line.slice(name.length);
  const label = `process="${process}"`;
  return rest.startsWith("{") ? `${name}{${label},${rest.slice(1)}` : `${name}{${label}}${rest}`;
}
