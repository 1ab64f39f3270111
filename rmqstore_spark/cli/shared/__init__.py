"""What several commands share: arguments, connections, queues chosen, messages in and out."""
