"""A store in MongoDB: several processes and machines share it, and what it acknowledged survives them."""

from lightning_mongo.backend import MongoBackend
from lightning_mongo.errors import UnusableDatabase
from lightning_mongo.store import MongoLightningStore

__all__ = ["MongoBackend", "MongoLightningStore", "UnusableDatabase"]
