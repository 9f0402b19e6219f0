from holdfast.client.client import Client as Client
from holdfast.client.functions import function as function

__version__: str
