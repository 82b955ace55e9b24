"""What do all rooms speak in? Records, settings, TOML within limits."""
