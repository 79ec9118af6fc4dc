/** The settings by name: environment variable, flag and place in the typed configuration. Dynamo's names mean what they mean there. */

/** How a setting's text becomes a value. */
export type SettingKind = "string" | "number" | "boolean" | "list";

export interface Setting {
  /** Path in KedgeConfig, e.g. `router.mode`. */
  readonly path: string;
  readonly env: readonly string[];
  /** Long flag without dashes; boolean settings get `--no-…` too. */
  readonly flag: string;
  readonly kind: SettingKind;
  readonly help: string;
}

/** What a command runs; each takes the settings of its parts. */
export type Part = "gateway" | "signing" | "agent" | "indexer" | "store" | "nats" | "place";

const ADDRESS = ["host", "port", "feed.horizonMs"];
const AGENT = [
  ...ADDRESS,
  "router.kvEvents",
  "router.kvCacheBlockSize",
  "limits.bodyBytes",
  "limits.stallTimeoutMs",
  "limits.heartbeatMs",
  "limits.drainTimeoutMs",
  "plan.jwks",
  "plan.agentUrl",
  "plan.agentId",
];
const INDEXER = [...ADDRESS, "router.resetStates"];

/** The parts that a setting is for; what belongs to no room of its own is the gateway's. */
export function partsOf({ path }: Setting): readonly Part[] {
  const [room = ""] = path.split(".");
  if (room === "store" || room === "nats" || room === "place") return [room];
  const parts: Part[] = room !== "plan" ? ["gateway"] : path === "plan.signingKey" ? ["signing"] : [];
  if (AGENT.includes(path)) parts.push("agent");
  if (INDEXER.includes(path)) parts.push("indexer");
  return parts;
}

const setting = (
  path: string,
  kind: SettingKind,
  env: string | readonly string[],
  flag: string,
  help: string,
): Setting => ({ path, kind, env: typeof env === "string" ? [env] : env, flag, help });

/** Order is the order of `--help`. The first environment name wins where several are set. */
export const SETTINGS: readonly Setting[] = [
  setting("host", "string", ["KEDGE_HOST", "DYN_HTTP_HOST"], "host", "address to listen on"),
  setting("port", "number", ["KEDGE_PORT", "DYN_HTTP_PORT"], "port", "port to listen on, 0 for any"),
  setting(
    "apiKeyDigests",
    "list",
    "KEDGE_API_KEYS",
    "api-keys",
    "SHA-256 digests of accepted API keys, comma-separated; needed off loopback",
  ),
  setting(
    "explain",
    "boolean",
    "KEDGE_EXPLAIN",
    "explain",
    "show callers how they were routed and let them override it (default: on loopback only)",
  ),
  setting(
    "router.mode",
    "string",
    "DYN_ROUTER_MODE",
    "router-mode",
    "kv, kv-1.x, round-robin, random, power-of-two, least-loaded or direct",
  ),
  setting(
    "router.overlapScoreWeight",
    "number",
    ["DYN_KV_OVERLAP_SCORE_WEIGHT", "DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT"],
    "kv-overlap-score-weight",
    "cost of an uncached prompt block",
  ),
  setting(
    "router.temperature",
    "number",
    "DYN_ROUTER_TEMPERATURE",
    "router-temperature",
    "0: lowest cost; above: softmax over costs",
  ),
  setting(
    "router.kvCacheBlockSize",
    "number",
    "DYN_KV_CACHE_BLOCK_SIZE",
    "kv-cache-block-size",
    "tokens per KV block that every engine must have",
  ),
  setting(
    "router.kvEvents",
    "boolean",
    ["DYN_KV_EVENTS", "DYN_ROUTER_USE_KV_EVENTS", "DYN_USE_KV_EVENTS"],
    "kv-events",
    "use the engines' KV events; off: predict from routing decisions",
  ),
  setting(
    "router.ttlSeconds",
    "number",
    ["DYN_ROUTER_TTL", "DYN_ROUTER_TTL_SECS"],
    "router-ttl",
    "seconds that a prediction lives without events",
  ),
  setting(
    "router.predictedTtlSeconds",
    "number",
    "DYN_ROUTER_PREDICTED_TTL_SECS",
    "router-predicted-ttl-secs",
    "seconds that a prediction lives while events flow",
  ),
  setting(
    "router.maxTreeSize",
    "number",
    "DYN_ROUTER_MAX_TREE_SIZE",
    "router-max-tree-size",
    "bound on predicted entries",
  ),
  setting(
    "router.activeDecodeBlocksThreshold",
    "number",
    "DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD",
    "active-decode-blocks-threshold",
    "busy above this fraction of KV blocks in use",
  ),
  setting(
    "router.activePrefillTokensThreshold",
    "number",
    "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD",
    "active-prefill-tokens-threshold",
    "busy above this many prompt tokens waiting for prefill",
  ),
  setting(
    "router.activePrefillTokensThresholdFrac",
    "number",
    "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC",
    "active-prefill-tokens-threshold-frac",
    "the same, in units of the engine's token budget per step",
  ),
  setting(
    "router.overlapScoreCredit",
    "number",
    "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT",
    "router-kv-overlap-score-credit",
    "kv-1.x: credit of a cached device block",
  ),
  setting(
    "router.overlapScoreCreditDecay",
    "number",
    "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY",
    "router-kv-overlap-score-credit-decay",
    "kv-1.x: decay of the credit with queued prefill",
  ),
  setting(
    "router.prefillLoadScale",
    "number",
    "DYN_ROUTER_PREFILL_LOAD_SCALE",
    "router-prefill-load-scale",
    "kv-1.x: cost of an uncached prompt block (default: the overlap score weight)",
  ),
  setting(
    "router.decodeActiveRequestWeight",
    "number",
    "DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT",
    "router-decode-active-request-weight",
    "kv-1.x: blocks charged per running request",
  ),
  setting(
    "router.hostCacheHitWeight",
    "number",
    "DYN_ROUTER_HOST_CACHE_HIT_WEIGHT",
    "router-host-cache-hit-weight",
    "kv-1.x: credit of a block in host memory",
  ),
  setting(
    "router.diskCacheHitWeight",
    "number",
    "DYN_ROUTER_DISK_CACHE_HIT_WEIGHT",
    "router-disk-cache-hit-weight",
    "kv-1.x: credit of a block on disk",
  ),
  setting(
    "router.sharedCacheMultiplier",
    "number",
    "DYN_SHARED_CACHE_MULTIPLIER",
    "shared-cache-multiplier",
    "kv-1.x: credit of a block in a shared cache",
  ),
  setting("limits.bodyBytes", "number", "KEDGE_BODY_LIMIT_BYTES", "body-limit-bytes", "largest request body"),
  setting(
    "limits.inflightBodyBytes",
    "number",
    "KEDGE_INFLIGHT_BODY_BYTES",
    "inflight-body-bytes",
    "request bodies held at once; beyond, new ones get 503",
  ),
  setting(
    "limits.requestTimeoutMs",
    "number",
    "KEDGE_REQUEST_TIMEOUT_MS",
    "request-timeout-ms",
    "deadline of a request, retries included; none: no deadline",
  ),
  setting(
    "limits.firstByteTimeoutMs",
    "number",
    "KEDGE_FIRST_BYTE_TIMEOUT_MS",
    "first-byte-timeout-ms",
    "wait for a worker's first data before trying the next",
  ),
  setting(
    "limits.stallTimeoutMs",
    "number",
    "KEDGE_STALL_TIMEOUT_MS",
    "stall-timeout-ms",
    "silence that ends a running stream with an error",
  ),
  setting(
    "limits.maxAttempts",
    "number",
    "KEDGE_MAX_ATTEMPTS",
    "max-attempts",
    "workers tried before the first data",
  ),
  setting(
    "limits.heartbeatMs",
    "number",
    "KEDGE_HEARTBEAT_MS",
    "heartbeat-ms",
    "interval of comments on a silent stream",
  ),
  setting(
    "limits.drainTimeoutMs",
    "number",
    "KEDGE_DRAIN_TIMEOUT_MS",
    "drain-timeout-ms",
    "time for running requests at shutdown",
  ),
  setting(
    "feed.lagEventsThreshold",
    "number",
    "KEDGE_FEED_LAG_EVENTS",
    "feed-lag-events",
    "events behind at which a feed counts as lagging",
  ),
  setting(
    "feed.lagMsThreshold",
    "number",
    "KEDGE_FEED_LAG_MS",
    "feed-lag-ms",
    "silence at which a feed counts as lagging",
  ),
  setting("feed.horizonMs", "number", "KEDGE_HORIZON_MS", "horizon-ms", "lease of what engines announced"),
  setting(
    "router.replicaSync",
    "boolean",
    "DYN_ROUTER_REPLICA_SYNC",
    "router-replica-sync",
    "count what other gateways have just sent; off: only what this one sent",
  ),
  setting(
    "router.resetStates",
    "boolean",
    "DYN_ROUTER_RESET_STATES",
    "router-reset-states",
    "begin with an empty view (a new epoch)",
  ),
  setting(
    "store.url",
    "string",
    ["KEDGE_REDIS_URL", "UPSTASH_REDIS_REST_URL"],
    "redis-url",
    "Upstash REST endpoint of the view, or that of kedge redis-rest",
  ),
  setting(
    "store.token",
    "string",
    ["KEDGE_REDIS_TOKEN", "UPSTASH_REDIS_REST_TOKEN"],
    "redis-token",
    "its token",
  ),
  setting("store.view", "string", "KEDGE_VIEW", "view", "name of the view within the database"),
  setting(
    "store.shards",
    "number",
    "KEDGE_VIEW_SHARDS",
    "view-shards",
    "parts of the view's index, for clusters",
  ),
  setting("store.backend", "string", "KEDGE_REDIS_BACKEND", "redis-backend", "auto, redis or upstash"),
  setting(
    "store.deadlineMs",
    "number",
    "KEDGE_STORE_DEADLINE_MS",
    "store-deadline-ms",
    "time of a lookup; then the request is routed without the view",
  ),
  setting(
    "store.fleetMaxAgeMs",
    "number",
    "KEDGE_FLEET_MAX_AGE_MS",
    "fleet-max-age-ms",
    "age of a large fleet's copy",
  ),
  setting("nats.url", "string", "KEDGE_NATS_URL", "nats-url", "ws:// or wss:// addresses, comma-separated"),
  setting("nats.creds", "string", "KEDGE_NATS_CREDS", "nats-creds", "credentials file, or its contents"),
  setting("nats.nkey", "string", "KEDGE_NATS_NKEY", "nats-nkey", "nkey seed"),
  setting("nats.token", "string", "KEDGE_NATS_TOKEN", "nats-token", "token"),
  setting("nats.user", "string", "KEDGE_NATS_USER", "nats-user", "user name"),
  setting("nats.password", "string", "KEDGE_NATS_PASSWORD", "nats-password", "password"),
  setting("nats.prefix", "string", "KEDGE_NATS_PREFIX", "nats-prefix", "first token of all subjects"),
  setting("nats.stream", "string", "KEDGE_NATS_STREAM", "nats-stream", "JetStream stream of KV batches"),
  setting("place.region", "string", "KEDGE_REGION", "region", "region of this process"),
  setting("place.cluster", "string", "KEDGE_CLUSTER", "cluster", "cluster of this node"),
  setting("place.node", "string", "KEDGE_NODE", "node", "name of this node (default: the host name)"),
  setting(
    "plan.signingKey",
    "string",
    "KEDGE_PLAN_KEY",
    "plan-key",
    "gateways: private Ed25519 key that signs plans (kedge plan-key makes one), or a file with it",
  ),
  setting(
    "plan.jwks",
    "string",
    "KEDGE_PLAN_JWKS",
    "plan-jwks",
    "agents: public keys of gateways: JWKS as JSON, file or URL",
  ),
  setting(
    "plan.agentUrl",
    "string",
    "KEDGE_AGENT_URL",
    "agent-url",
    "agents: base URL at which gateways reach this one (default: its own address)",
  ),
  setting(
    "plan.agentId",
    "string",
    "KEDGE_AGENT_ID",
    "agent-id",
    "agents: audience of plans (default: region/cluster/node)",
  ),
  setting(
    "fallback.seedFleet",
    "string",
    "KEDGE_SEED_FLEET",
    "seed-fleet",
    "fleet of a fresh gateway without a view: JSON of kedge fleet, or a file with it",
  ),
  setting(
    "fallback.loadFactor",
    "number",
    "KEDGE_LOAD_FACTOR",
    "load-factor",
    "without a view: a worker's share, in times of the mean",
  ),
];
