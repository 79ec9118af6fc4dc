/** Where the bridge answers otherwise than Dynamo 1.6.1 did on event-batches.jsonl: why, and what it answers. */

export interface IntendedDifference {
  /** Name of the recorded case. */
  readonly name: string;
  readonly reason: string;
  /** Per lookup of the case: blocks on the device, host extension, disk extension. */
  readonly answer: readonly (readonly [number, number, number])[];
}

export const INTENDED_DIFFERENCES: readonly IntendedDifference[] = [
  {
    name: "rank absent",
    reason: "Engines before the rank was added send two elements; the rank is that of the stream.",
    answer: [[4, 0, 0]],
  },
  {
    name: "rank not registered",
    reason:
      "A worker with one rank has one stream, and what comes on it is that rank's, whatever number an outer load balancer gave it.",
    answer: [[4, 0, 0]],
  },
  {
    name: "byte string block hashes",
    reason: "Engines can be set to send raw digests; the last eight bytes are the integer that others send.",
    answer: [[4, 0, 0]],
  },
  {
    name: "tokens longer than the hashes",
    reason:
      "Such token ids span blocks that are not named, at the front (sliding windows) as well as at the end: which hash is which block cannot be known.",
    answer: [[0, 0, 0]],
  },
  {
    name: "lora id only",
    reason: "An adapter without a name is still not the base model, whose prompts miss these blocks.",
    answer: [[0, 0, 0]],
  },
  {
    name: "extra keys: salt",
    reason:
      "The salt is keyed as the engine got it; the prefix that Dynamo's own frontend puts before salts is part of it.",
    answer: [
      [0, 0, 0],
      [0, 0, 0],
    ],
  },
  {
    name: "extra keys: salt on every block",
    reason: "As above.",
    answer: [
      [0, 0, 0],
      [0, 0, 0],
    ],
  },
  {
    name: "extra keys: plain salt",
    reason:
      "vLLM sends the salt as it is: unsalted prompts miss these blocks and prompts of that tenant hit them.",
    answer: [
      [0, 0, 0],
      [4, 0, 0],
    ],
  },
  {
    name: "extra keys: image hash",
    reason: "Placeholder tokens say nothing of the image: the chain ends before the block that holds one.",
    answer: [[1, 0, 0]],
  },
  {
    name: "unknown event type beside a valid one",
    reason: "An event that cannot be read loses itself, not its batch.",
    answer: [[4, 0, 0]],
  },
  {
    name: "payload is a map",
    reason: "One engine source tree sends the envelope as a map.",
    answer: [[4, 0, 0]],
  },
  {
    name: "sequence gap",
    reason:
      "What was lost may have been removals: without a replay the rank begins a new incarnation and the rest waits for its parent.",
    answer: [[0, 0, 0]],
  },
  {
    name: "sequence repeated",
    reason: "Another batch under the same number is a restarted engine, whose cache is empty.",
    answer: [[0, 0, 0]],
  },
  {
    name: "sequence goes back",
    reason: "A restarted engine counts from 0 again, and its cache is empty.",
    answer: [[0, 0, 0]],
  },
];
