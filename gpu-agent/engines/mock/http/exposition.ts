/** GET /metrics: vLLM's families, labels and order in the Prometheus text format, as its Python client writes them. */

import type { Engine } from "../engine.ts";
import type { Histogram, RankMetrics } from "../metrics.ts";

type Labels = Readonly<Record<string, string>>;

/** A number as the Python client prints it: floats always, exponents from 1e6 on. */
export function pythonFloat(value: number): string {
  if (value === Number.POSITIVE_INFINITY) return "+Inf";
  const text = Number.isInteger(value) && Math.abs(value) < 1e16 ? `${value}.0` : String(value);
  const dot = text.indexOf(".");
  if (value <= 0 || dot <= 6 || text.includes("e")) return text;
  const digits = `${text.slice(1, dot)}${text.slice(dot + 1)}`.replace(/0+$/, "");
  return `${text[0]}${digits === "" ? "" : `.${digits}`}e+${String(dot - 1).padStart(2, "0")}`;
}

class Exposition {
  #text = "";
  readonly #created: string;

  constructor(createdUnixSeconds: number) {
    this.#created = pythonFloat(createdUnixSeconds);
  }

  get text(): string {
    return this.#text;
  }

  family(name: string, type: string, help: string): void {
    this.#text += `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n`;
  }

  sample(name: string, labels: Labels, value: string): void {
    const inner = Object.keys(labels)
      .toSorted()
      .map(
        (key) =>
          `${key}="${labels[key]!.replace(/[\\"\n]/g, (char) => (char === "\n" ? "\\n" : `\\${char}`))}"`,
      );
    this.#text += `${name}${inner.length > 0 ? `{${inner.join(",")}}` : ""} ${value}\n`;
  }

  gauge(name: string, help: string, samples: readonly [Labels, number][]): void {
    this.family(name, "gauge", help);
    for (const [labels, value] of samples) this.sample(name, labels, pythonFloat(value));
  }

  counter(name: string, help: string, samples: readonly [Labels, number][]): void {
    this.family(`${name}_total`, "counter", help);
    for (const [labels, value] of samples) this.sample(`${name}_total`, labels, pythonFloat(value));
    this.#creation(
      name,
      help,
      samples.map(([labels]) => labels),
    );
  }

  histogram(name: string, help: string, samples: readonly [Labels, Histogram][]): void {
    this.family(name, "histogram", help);
    for (const [labels, histogram] of samples) {
      let below = 0;
      histogram.counts.forEach((count, i) => {
        below += count;
        const le = pythonFloat(histogram.bounds[i] ?? Number.POSITIVE_INFINITY);
        this.sample(`${name}_bucket`, { ...labels, le }, pythonFloat(below));
      });
      this.sample(`${name}_count`, labels, pythonFloat(histogram.count));
      this.sample(`${name}_sum`, labels, pythonFloat(histogram.sum));
    }
    this.#creation(
      name,
      help,
      samples.map(([labels]) => labels),
    );
  }

  #creation(name: string, help: string, labels: readonly Labels[]): void {
    this.family(`${name}_created`, "gauge", help);
    for (const one of labels) this.sample(`${name}_created`, one, this.#created);
  }
}

interface RankView {
  readonly labels: Labels;
  readonly metrics: RankMetrics;
}

const WAIT_REASONS = ["capacity", "deferred"] as const;
const SLEEP_STATES = ["awake", "weights_offloaded", "discard_all"];
const FINISHES = ["stop", "length", "abort", "error", "repetition"] as const;

/** The whole page. */
export function metricsText(engine: Engine): string {
  const out = new Exposition(engine.life.startedUnixSeconds);
  const model = { model_name: engine.config.servedModelNames[0]! };
  const ranks: RankView[] = Array.from({ length: engine.rankCount }, (_, rank) => ({
    labels: { engine: String(rank), ...model },
    metrics: engine.scheduler(rank).metrics,
  }));
  processMetrics(out, engine);
  for (const what of ["flops", "read_bytes", "write_bytes"]) {
    const samples = ranks.map(({ labels }): [Labels, number] => [labels, 0]);
    out.counter(`vllm:estimated_${what}_per_gpu`, "Not estimated.", samples);
  }
  gauges(out, engine, ranks);
  counters(out, engine, ranks, model);
  histograms(out, ranks);
  adapterInfo(out, engine);
  cacheConfig(out, engine);
  return out.text;
}

function processMetrics(out: Exposition, engine: Engine): void {
  const { user, system } = process.cpuUsage();
  out.gauge("process_resident_memory_bytes", "Resident memory in bytes.", [[{}, process.memoryUsage.rss()]]);
  out.gauge("process_start_time_seconds", "Unix time of the start.", [[{}, engine.life.startedUnixSeconds]]);
  out.family("process_cpu_seconds_total", "counter", "CPU time in seconds.");
  out.sample("process_cpu_seconds_total", {}, pythonFloat((user + system) / 1e6));
}

function gauges(out: Exposition, engine: Engine, ranks: readonly RankView[]): void {
  const per = (read: (rank: number) => number): [Labels, number][] =>
    ranks.map(({ labels }, rank) => [labels, read(rank)]);
  const scheduler = engine.scheduler.bind(engine);
  out.gauge(
    "vllm:num_requests_running",
    "Sequences in the running batch.",
    per((rank) => scheduler(rank).running),
  );
  out.gauge(
    "vllm:num_requests_waiting",
    "Requests that wait.",
    per((rank) => scheduler(rank).waiting + scheduler(rank).deferred),
  );
  out.gauge(
    "vllm:num_requests_waiting_by_reason",
    "Requests that wait for room (capacity) or for something else, such as KV from another engine (deferred).",
    WAIT_REASONS.flatMap((reason) =>
      ranks.map(({ labels }, rank): [Labels, number] => [
        { ...labels, reason },
        reason === "capacity" ? scheduler(rank).waiting : scheduler(rank).deferred,
      ]),
    ),
  );
  out.gauge(
    "vllm:engine_sleep_state",
    "1 for the state that the engine is in.",
    SLEEP_STATES.flatMap((state) =>
      ranks.map(({ labels }): [Labels, number] => [
        { ...labels, sleep_state: state },
        state === "awake" ? 1 : 0,
      ]),
    ),
  );
  out.gauge(
    "vllm:kv_cache_usage_perc",
    "Share of KV blocks in use, 1 means all.",
    per((rank) => engine.usage(rank)),
  );
}

function counters(out: Exposition, engine: Engine, ranks: readonly RankView[], model: Labels): void {
  const count = (name: string, help: string, read: (metrics: RankMetrics) => number): void =>
    out.counter(
      `vllm:${name}`,
      help,
      ranks.map(({ labels, metrics }) => [labels, read(metrics)]),
    );
  const countBy = (
    name: string,
    help: string,
    label: string,
    values: Readonly<Record<string, (metrics: RankMetrics) => number>>,
  ): void =>
    out.counter(
      `vllm:${name}`,
      help,
      Object.entries(values).flatMap(([value, read]) =>
        ranks.map(({ labels, metrics }): [Labels, number] => [{ ...labels, [label]: value }, read(metrics)]),
      ),
    );
  count("prefix_cache_queries", "Tokens looked up in the prefix cache.", (m) => m.prefixQueries);
  count("prefix_cache_hits", "Tokens found in the prefix cache.", (m) => m.prefixHits);
  count("external_prefix_cache_queries", "Tokens asked of other engines.", (m) => m.externalQueries);
  count("external_prefix_cache_hits", "Tokens that other engines gave.", (m) => m.externalHits);
  count("mm_cache_queries", "Multi-modal items looked up.", () => 0);
  count("mm_cache_hits", "Multi-modal items found.", () => 0);
  count("num_preemptions", "Preemptions.", (m) => m.preemptions);
  count("prompt_tokens", "Prompt tokens processed.", (m) => m.promptTokens);
  countBy("prompt_tokens_by_source", "Prompt tokens by where their KV came from.", "source", {
    local_compute: (m) => m.promptComputed,
    local_cache_hit: (m) => m.promptCached,
    external_kv_transfer: (m) => m.promptExternal,
  });
  count("prompt_tokens_cached", "Prompt tokens that were cached.", (m) => m.promptCached + m.promptExternal);
  countBy("prompt_tokens_cached_by_source", "Cached prompt tokens by tier.", "source", {
    device: (m) => m.promptCached,
    host: () => 0,
    p2p: (m) => m.promptExternal,
    disk: () => 0,
    external_unspecified: () => 0,
  });
  count("generation_tokens", "Tokens generated.", (m) => m.generationTokens);
  countBy(
    "request_success",
    "Finished requests by reason.",
    "finished_reason",
    Object.fromEntries(FINISHES.map((reason) => [reason, (m: RankMetrics) => m.success[reason]])),
  );
  out.counter("vllm:admission_rejections", "Requests refused because a queue was full.", [
    [{ ...model, reason: "max_num_queued_reqs" }, engine.admissionRejections],
    [{ ...model, reason: "max_num_queued_tokens" }, 0],
  ]);
}

const HISTOGRAMS = [
  ["request_prompt_tokens", "Prompt tokens per request.", "promptLength"],
  ["request_generation_tokens", "Generated tokens per request.", "generationLength"],
  ["iteration_tokens_total", "Tokens per engine step.", "stepTokens"],
  [
    "request_max_num_generation_tokens",
    "Most tokens generated for one sample of a request.",
    "maxGeneration",
  ],
  ["request_params_n", "Parameter n.", "paramN"],
  ["request_params_max_tokens", "Parameter max_tokens.", "paramMaxTokens"],
  ["time_to_first_token_seconds", "Seconds to the first token.", "firstTokenSeconds"],
  ["inter_token_latency_seconds", "Seconds between tokens.", "tokenGapSeconds"],
  ["request_time_per_output_token_seconds", "Seconds per output token of a request.", "perTokenSeconds"],
  ["e2e_request_latency_seconds", "Seconds from arrival to end.", "totalSeconds"],
  ["request_queue_time_seconds", "Seconds spent waiting.", "queueSeconds"],
  ["request_inference_time_seconds", "Seconds spent running.", "inferenceSeconds"],
  ["request_prefill_time_seconds", "Seconds spent in prefill.", "prefillSeconds"],
  ["request_decode_time_seconds", "Seconds spent decoding.", "decodeSeconds"],
  ["request_num_preemptions", "Preemptions per request.", "requestPreemptions"],
  ["request_prefill_kv_computed_tokens", "Prompt tokens computed per request.", "prefillComputed"],
] as const satisfies readonly (readonly [string, string, keyof RankMetrics])[];

function histograms(out: Exposition, ranks: readonly RankView[]): void {
  for (const [name, help, field] of HISTOGRAMS) {
    out.histogram(
      `vllm:${name}`,
      help,
      ranks.map(({ labels, metrics }) => [labels, metrics[field]]),
    );
  }
}

function adapterInfo(out: Exposition, engine: Engine): void {
  if (engine.adapters.size === 0) return;
  out.family("vllm:lora_requests_info", "gauge", "Adapters in use.");
  const labels = {
    max_lora: String(engine.config.maxLoras),
    running_lora_adapters: "",
    waiting_lora_adapters: "",
  };
  out.sample("vllm:lora_requests_info", labels, pythonFloat(engine.config.clock.unixSeconds()));
}

/** Labels are strings in Python's spelling; the block count is that of all ranks together. */
function cacheConfig(out: Exposition, engine: Engine): void {
  const { blockSize, numGpuBlocks, numGpuBlocksOverride, maxModelLen } = engine.config;
  const blocks = numGpuBlocks * engine.rankCount;
  out.family("vllm:cache_config_info", "gauge", "Configuration of the KV cache.");
  for (let rank = 0; rank < engine.rankCount; rank++) {
    const labels: Labels = {
      _block_size_resolved: "True",
      block_size: String(blockSize),
      cache_dtype: "auto",
      cache_hit_alignment_tokens: "None",
      effective_attention_block_size: String(blockSize),
      enable_mamba_shared_prefix_checkpoint: "False",
      enable_prefix_caching: "True",
      engine: String(rank),
      gpu_memory_utilization: "0.9",
      hash_block_size: "None",
      is_attention_free: "False",
      kv_cache_dtype_skip_layers: "[]",
      kv_cache_layout: "None",
      kv_cache_max_concurrency: pythonFloat(Math.round((numGpuBlocks * blockSize * 100) / maxModelLen) / 100),
      kv_cache_memory_bytes: "None",
      kv_cache_size_tokens: String(numGpuBlocks * blockSize),
      kv_offloading_backend: "native",
      kv_offloading_size: "None",
      kv_sharing_fast_prefill: "False",
      mamba_block_size: "None",
      mamba_cache_dtype: "auto",
      mamba_cache_mode: "none",
      mamba_page_size_padded: "None",
      mamba_ssm_cache_dtype: "float32",
      num_cpu_blocks: "None",
      num_gpu_blocks: String(blocks),
      num_gpu_blocks_override: numGpuBlocksOverride === null ? "None" : String(numGpuBlocksOverride),
      prefix_cache_retention_interval: "0",
      prefix_caching_hash_algo: "sha256_cbor",
      prefix_match_unit: "None",
      replayssm_buffer_len: "16",
      skip_page_size_padded: "None",
      sliding_window: "None",
      swa_bounded_replay: "True",
      use_kda_recoverssm: "False",
      use_replayssm: "False",
      user_specified_block_size: "True",
    };
    out.sample("vllm:cache_config_info", labels, "1.0");
  }
}
