"""What a party trains: each kind of task in a folder, checked in the node, done in the training process."""
