"""What several experiments share: small models, counters, texts, tables."""
