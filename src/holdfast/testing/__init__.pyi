from holdfast.testing.network import Body as Body
from holdfast.testing.network import Network as Network
from holdfast.testing.network import NetworkStuck as NetworkStuck
from holdfast.testing.network import Run as Run
from holdfast.testing.network import VirtualNode as VirtualNode
from holdfast.testing.network import really as really
