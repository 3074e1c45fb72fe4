"""What ranks send each other in a step, and when: buckets, transfers, formats on the wire."""
