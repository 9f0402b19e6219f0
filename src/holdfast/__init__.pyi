from holdfast import errors as errors
from holdfast import testing as testing
from holdfast.client.async_client import AsyncClient as AsyncClient
from holdfast.client.client import Client as Client
from holdfast.client.functions import function as function
from holdfast.client.log_lines import LogLine as LogLine
from holdfast.client.objects import Array as Array
from holdfast.client.objects import AsyncArray as AsyncArray
from holdfast.client.objects import AsyncJob as AsyncJob
from holdfast.client.objects import AsyncNode as AsyncNode
from holdfast.client.objects import Event as Event
from holdfast.client.objects import Job as Job
from holdfast.client.objects import Node as Node

__version__: str
