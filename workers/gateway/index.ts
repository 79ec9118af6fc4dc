/** Entry of the gateway Worker: the view is in Redis, over REST. */

import { RedisStore, redisStoreOptions } from "../../src/store/redis/index.ts";
import { createWorker } from "./worker.ts";

export default createWorker(
  (config, clock) => new RedisStore({ ...redisStoreOptions(config), clock, random: Math.random }),
);
