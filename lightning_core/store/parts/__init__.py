"""What the facade is made of: one file for each kind of thing that a store keeps."""
