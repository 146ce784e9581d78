"""One model replica: scheduler, KV cache, model runner, sampler. It sees token ids only."""
