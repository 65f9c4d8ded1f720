"""What knows verl's trainer from inside, and TransferQueue. Read against verl 0.9.1 and TransferQueue 0.1.11.

verl promises nothing of what is used here, so another version of it means reading this package again: `trainer` is
verl's trainer with rollouts from the store and advantages for whole rollouts, `queue` is between the two.

Also to be read: the file of its defaults in `config`, the forms of its checkpoints in `lora`, `checkpoints` and
`rules.servable_folder`, what its servers answer in `engine` and `tools`, its pools in `cluster`, and what its
workers find by name in `cpu`, `hf` and `workers`.
"""
