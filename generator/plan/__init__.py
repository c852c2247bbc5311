"""From a scenario to a plan: who asks what, in which order, sharing how much. No tokenizer, no corpus."""
