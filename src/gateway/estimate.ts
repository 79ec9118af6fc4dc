/** How long a prompt is in tokens when only its bytes are known: a ratio per model, learnt from reported usage. */

/** Least weight of a new observation; the first ones weigh more: 1, 1/2, 1/3, … */
const LEAST_WEIGHT = 0.05;
/** No tokenizer in use is outside of this, over a whole prompt. */
const MIN_BYTES_PER_TOKEN = 1;
const MAX_BYTES_PER_TOKEN = 12;
/** Shorter prompts say more of their template than of their language. */
const MIN_OBSERVED_TOKENS = 32;
/** Models remembered; the least recently learnt goes first. */
const MAX_MODELS = 1_000;

export class TokenEstimator {
  private readonly ratios = new Map<string, { readonly ratio: number; readonly seen: number }>();

  /** Bytes per token; `fallback` is the model card's first guess. */
  bytesPerToken(model: string, fallback: number): number {
    return this.ratios.get(model)?.ratio ?? fallback;
  }

  /** Takes note that a prompt of `bytes` had `tokens`. */
  observe(model: string, bytes: number, tokens: number, fallback: number): void {
    if (tokens < MIN_OBSERVED_TOKENS || bytes <= 0) return;
    const observed = Math.min(MAX_BYTES_PER_TOKEN, Math.max(MIN_BYTES_PER_TOKEN, bytes / tokens));
    const before = this.bytesPerToken(model, fallback);
    const seen = (this.ratios.get(model)?.seen ?? 0) + 1;
    const ratio = before + Math.max(LEAST_WEIGHT, 1 / seen) * (observed - before);
    this.ratios.delete(model);
    this.ratios.set(model, { ratio, seen });
    if (this.ratios.size > MAX_MODELS) this.ratios.delete(this.ratios.keys().next().value!);
  }
}
