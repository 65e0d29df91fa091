"""What the Flower apps share: run configuration, data sources, partitions, submission, progress."""
