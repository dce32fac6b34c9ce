"""A pass-through proxy before a running engine that writes its live traffic as a workload."""
