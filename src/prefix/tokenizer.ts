/** Text → token ids with the model's own tokenizer (scheme `tokens`; Node gateways: it takes 80–150 MB). */

import { Tokenizer } from "@huggingface/tokenizers";
import { KedgeError } from "../errors/index.ts";

export interface PromptTokenizer {
  /** `addSpecial`: let the tokenizer add its own prefix (BOS), as engines do for completions but not for rendered chats. */
  encode(text: string, options: { readonly addSpecial: boolean }): number[];
}

/**
 * A tokenizer from the parsed `tokenizer.json` and `tokenizer_config.json` of a model.
 * Errors: `config_invalid` if the library cannot build it.
 */
export function createTokenizer(tokenizerJson: object, tokenizerConfig: object): PromptTokenizer {
  const tokenizer = build(tokenizerJson, tokenizerConfig);
  return {
    encode: (text, { addSpecial }) => tokenizer.encode(text, { add_special_tokens: addSpecial }).ids,
  };
}

function build(tokenizerJson: object, tokenizerConfig: object): Tokenizer {
  try {
    return new Tokenizer(tokenizerJson, tokenizerConfig);
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    throw new KedgeError("config_invalid", `The model's tokenizer cannot be built: ${reason}`, { cause });
  }
}
