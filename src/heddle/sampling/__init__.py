"""From logits to a token: the counter-based generator and the sampler chain's reference."""
