"""Where AISBench looks for classes of a plugin. They are named by their full path, so nothing is imported here: AISBench
looks while its own modules are still half imported."""
