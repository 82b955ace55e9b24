"""Log-probabilities and entropy of responses, whose only tensor of the logits' size is the gradient."""
