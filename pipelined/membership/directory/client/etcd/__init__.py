"""The directory kept by an etcd cluster, over its JSON gateway."""
