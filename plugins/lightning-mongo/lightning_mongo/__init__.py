"""A store in MongoDB: several processes and machines share it, and what it acknowledged survives them."""

from lightning_mongo.backend import MongoBackend, MongoLightningStore
from lightning_mongo.database import Settings
from lightning_mongo.errors import UnusableDatabase

__all__ = ["MongoBackend", "MongoLightningStore", "Settings", "UnusableDatabase"]
