"""The single writer of a store: log, queues, index, recovery (`store.StoreWriter`)."""
