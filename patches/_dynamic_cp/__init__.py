"""Plans of dynamic context parallelism: which ranks share which sequences. Pure arithmetic on lengths."""
