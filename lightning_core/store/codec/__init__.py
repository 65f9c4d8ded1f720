"""Records, spans and values as JSON text, for databases: what they keep of them comes back as it was."""
