/** What the agent reads of an engine's /metrics: load per rank, cache facts, process start (engines.md §3.5). */

/** Figures of one rank; null where the engine does not say. */
export interface RankFigures {
  /** Share of KV blocks in use by requests, 0 … 1; cached and free blocks count as free. */
  readonly cacheUsage: number | null;
  readonly running: number | null;
  readonly waiting: number | null;
}

export interface EngineFigures {
  /** By data-parallel rank; engines that name no rank are rank 0. */
  readonly ranks: ReadonlyMap<number, RankFigures>;
  /** Tokens per KV block; null if not said or not the same everywhere. */
  readonly blockSize: number | null;
  /** KV blocks of all ranks together. */
  readonly totalBlocks: number | null;
  /** Unix seconds; changes with every life of the process. */
  readonly processStartSeconds: number | null;
}

/** Both generations of names; matched whole, since longer names begin alike. */
const GAUGES: Readonly<Record<string, keyof RankFigures>> = {
  "vllm:kv_cache_usage_perc": "cacheUsage",
  "vllm:gpu_cache_usage_perc": "cacheUsage",
  "vllm:num_requests_running": "running",
  "vllm:num_requests_waiting": "waiting",
};
const CACHE_CONFIG = "vllm:cache_config_info";
const PROCESS_START = "process_start_time_seconds";

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;

type Figures = { -readonly [K in keyof RankFigures]: RankFigures[K] };

/** Reads the text format; lines that are of no interest or malformed are passed over. */
export function readMetrics(text: string): EngineFigures {
  const ranks = new Map<number, Figures>();
  const blockSizes = new Set<number>();
  let totalBlocks: number | null = null;
  let processStartSeconds: number | null = null;
  for (const line of text.split("\n")) {
    if (!line.startsWith("vllm:") && !line.startsWith(PROCESS_START)) continue;
    const [, name = "", labelText = "", valueText = ""] = SAMPLE.exec(line) ?? [];
    const value = finite(valueText);
    const gauge = GAUGES[name];
    if (gauge !== undefined) {
      figuresOf(ranks, labelsOf(labelText))[gauge] = value;
    } else if (name === CACHE_CONFIG) {
      const labels = labelsOf(labelText);
      figuresOf(ranks, labels);
      const blockSize = finite(labels.get("block_size"));
      if (blockSize !== null) blockSizes.add(blockSize);
      totalBlocks ??= finite(labels.get("num_gpu_blocks"));
    } else if (name === PROCESS_START) processStartSeconds = value;
  }
  const [blockSize] = blockSizes;
  return {
    ranks,
    blockSize: blockSizes.size === 1 ? blockSize! : null,
    totalBlocks,
    processStartSeconds,
  };
}

function figuresOf(ranks: Map<number, Figures>, labels: ReadonlyMap<string, string>): Figures {
  const rank = finite(labels.get("engine")) ?? 0;
  let figures = ranks.get(rank);
  if (figures === undefined) {
    figures = { cacheUsage: null, running: null, waiting: null };
    ranks.set(rank, figures);
  }
  return figures;
}

function labelsOf(text: string): ReadonlyMap<string, string> {
  const labels = new Map<string, string>();
  for (const [, name, value] of text.matchAll(LABEL)) labels.set(name!, value!);
  return labels;
}

/** Label values may be `None`, samples `NaN` or `+Inf`. */
function finite(text: string | undefined): number | null {
  if (text === undefined || text === "") return null;
  const value = Number(text);
  return Number.isFinite(value) && value >= 0 ? value : null;
}
