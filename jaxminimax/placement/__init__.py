"""Places of the rows: on one device, on the devices of a mesh, on the host."""

from jaxminimax.placement.agreement import agree as agree
from jaxminimax.placement.host_data import HostData as HostData
from jaxminimax.placement.sharding import Sharded as Sharded
from jaxminimax.placement.sharding import own_rows as own_rows
from jaxminimax.placement.sharding import shard as shard
