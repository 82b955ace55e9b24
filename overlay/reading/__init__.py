"""What does the source of an upstream say? It is read, and never imported."""
