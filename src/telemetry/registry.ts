/** Prometheus counters, gauges and histograms with bounded label sets; runs in workerd and Node alike. */

/** Series of one metric past this many fold into one whose labels all read `other`. */
const DEFAULT_MAX_SERIES = 1_000;
const OVERFLOW_LABEL = "other";
const NAME = /^[a-zA-Z_:][a-zA-Z0-9_:]*$/;

type MetricType = "counter" | "gauge" | "histogram";

interface MetricOptions {
  readonly name: string;
  readonly help: string;
  readonly labels?: readonly string[];
  readonly maxSeries?: number;
}

export interface Counter {
  inc(by?: number): void;
}

export interface Gauge {
  set(value: number): void;
  add(by: number): void;
}

export interface Histogram {
  observe(value: number): void;
}

/** One metric with its series; `labels(…)` returns the same handle for the same values, to be kept on hot paths. */
export interface Family<T> {
  labels(...values: string[]): T;
  /** Forgets the series of what is no more, e.g. a worker that left. */
  remove(...values: string[]): void;
}

interface Series {
  encode(name: string, labels: string, out: string[]): void;
}

class ScalarSeries implements Counter, Gauge, Series {
  private value = 0;

  inc(by = 1): void {
    this.value += by;
  }

  add(by: number): void {
    this.value += by;
  }

  set(value: number): void {
    this.value = value;
  }

  encode(name: string, labels: string, out: string[]): void {
    out.push(`${name}${labels === "" ? "" : `{${labels}}`} ${formatNumber(this.value)}`);
  }
}

class HistogramSeries implements Histogram, Series {
  private readonly bounds: readonly number[];
  private readonly counts: Float64Array;
  private sum = 0;

  constructor(bounds: readonly number[]) {
    this.bounds = bounds;
    this.counts = new Float64Array(bounds.length + 1);
  }

  observe(value: number): void {
    let index = 0;
    while (index < this.bounds.length && value > this.bounds[index]!) index++;
    this.counts[index]! += 1;
    this.sum += value;
  }

  encode(name: string, labels: string, out: string[]): void {
    const prefix = labels === "" ? "" : `${labels},`;
    let cumulative = 0;
    for (let i = 0; i < this.counts.length; i++) {
      cumulative += this.counts[i]!;
      const bound = i < this.bounds.length ? formatNumber(this.bounds[i]!) : "+Inf";
      out.push(`${name}_bucket{${prefix}le="${bound}"} ${cumulative}`);
    }
    const suffix = labels === "" ? "" : `{${labels}}`;
    out.push(`${name}_sum${suffix} ${formatNumber(this.sum)}`, `${name}_count${suffix} ${cumulative}`);
  }
}

class MetricFamily<T extends Series> implements Family<T> {
  readonly name: string;
  readonly help: string;
  readonly type: MetricType;
  private readonly labelNames: readonly string[];
  private readonly maxSeries: number;
  private readonly make: () => T;
  private readonly series = new Map<string, T>();

  constructor(type: MetricType, options: MetricOptions, make: () => T) {
    if (!NAME.test(options.name)) throw new RangeError(`"${options.name}" is not a metric name.`);
    this.type = type;
    this.name = options.name;
    this.help = options.help;
    this.labelNames = options.labels ?? [];
    this.maxSeries = options.maxSeries ?? DEFAULT_MAX_SERIES;
    this.make = make;
    if (this.labelNames.length === 0) this.labels();
  }

  labels(...values: string[]): T {
    if (values.length !== this.labelNames.length) {
      throw new RangeError(`${this.name} takes ${this.labelNames.length} labels, not ${values.length}.`);
    }
    let key = this.encodeLabels(values);
    let found = this.series.get(key);
    if (found !== undefined) return found;
    if (this.series.size >= this.maxSeries) {
      key = this.encodeLabels(this.labelNames.map(() => OVERFLOW_LABEL));
      found = this.series.get(key);
      if (found !== undefined) return found;
    }
    const created = this.make();
    this.series.set(key, created);
    return created;
  }

  remove(...values: string[]): void {
    this.series.delete(this.encodeLabels(values));
  }

  encode(out: string[]): void {
    out.push(`# HELP ${this.name} ${escapeHelp(this.help)}`, `# TYPE ${this.name} ${this.type}`);
    for (const [labels, series] of this.series) series.encode(this.name, labels, out);
  }

  private encodeLabels(values: readonly string[]): string {
    let text = "";
    for (let i = 0; i < values.length; i++) {
      text += `${i === 0 ? "" : ","}${this.labelNames[i]}="${escapeLabel(values[i]!)}"`;
    }
    return text;
  }
}

/** All metrics of one process or isolate. Names are unique; asking twice for one is an error. */
export class Registry {
  private readonly families = new Map<string, MetricFamily<Series>>();

  counter(options: MetricOptions): Family<Counter> {
    return this.add(new MetricFamily("counter", options, () => new ScalarSeries()));
  }

  gauge(options: MetricOptions): Family<Gauge> {
    return this.add(new MetricFamily("gauge", options, () => new ScalarSeries()));
  }

  /** `buckets`: upper bounds, ascending, without +Inf. */
  histogram(options: MetricOptions & { readonly buckets: readonly number[] }): Family<Histogram> {
    return this.add(new MetricFamily("histogram", options, () => new HistogramSeries(options.buckets)));
  }

  /** Prometheus text format 0.0.4. */
  encode(): string {
    const out: string[] = [];
    for (const family of this.families.values()) family.encode(out);
    return `${out.join("\n")}\n`;
  }

  private add<T extends Series>(family: MetricFamily<T>): MetricFamily<T> {
    if (this.families.has(family.name)) throw new RangeError(`Metric ${family.name} exists already.`);
    this.families.set(family.name, family);
    return family;
  }
}

export const PROMETHEUS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8";

/** Bounds from `first` growing by `factor`, `count` of them, at three significant digits. */
export function exponentialBuckets(first: number, factor: number, count: number): number[] {
  return Array.from({ length: count }, (_, i) => Number((first * factor ** i).toPrecision(3)));
}

function formatNumber(value: number): string {
  if (value === Number.POSITIVE_INFINITY) return "+Inf";
  if (value === Number.NEGATIVE_INFINITY) return "-Inf";
  return String(value);
}

function escapeLabel(value: string): string {
  return /["\\\n]/.test(value)
    ? value.replace(/["\\\n]/g, (char) => (char === "\n" ? "\\n" : `\\${char}`))
    : value;
}

function escapeHelp(value: string): string {
  return value.replace(/[\\\n]/g, (char) => (char === "\n" ? "\\n" : "\\\\"));
}
