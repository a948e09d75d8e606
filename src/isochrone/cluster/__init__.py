"""The one door: events in, commands out. Pure: no clock, no sockets, no chance of its own."""

from isochrone.cluster.cluster import Cluster
from isochrone.cluster.view import InstanceView

__all__ = ["Cluster", "InstanceView"]
