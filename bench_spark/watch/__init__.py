"""A run followed from its tables while it goes on: by any process that can read the store."""
