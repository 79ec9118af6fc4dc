/** Log probabilities in vLLM's shapes. The mock knows none: every token is said to be certain. */

import type { Tokenizer } from "../tokenizer.ts";

/** `choices[].logprobs` of a chat. */
export function chatLogprobs(tokenizer: Tokenizer, ids: readonly number[]): object {
  return {
    content: ids.map((id) => {
      const entry = { token: tokenizer.decode([id]), logprob: 0, bytes: [...tokenizer.bytes(id)] };
      return { ...entry, top_logprobs: [entry] };
    }),
  };
}

/** `choices[].logprobs` of a completion. */
export function completionLogprobs(tokenizer: Tokenizer, ids: readonly number[]): object {
  const tokens = ids.map((id) => tokenizer.decode([id]));
  let offset = 0;
  return {
    text_offset: tokens.map((token) => {
      const at = offset;
      offset += token.length;
      return at;
    }),
    token_logprobs: tokens.map(() => 0),
    tokens,
    top_logprobs: tokens.map((token) => ({ [token]: 0 })),
  };
}
