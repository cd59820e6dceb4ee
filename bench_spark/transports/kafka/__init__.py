"""Kafka, by librdkafka: messages through its C interface, all else through confluent-kafka.

settings.py          librdkafka's properties, of scenario and broker; refuses what it would not take
property_names.py    their names, for suggestions
cluster.py           topics, offsets and groups: create, ask, delete, clean up
release.py           which Kafka this is
librdkafka.py        its functions by ctypes, its errors and log lines, its clients
interface_check.py   whether it is the library we take it for
kernels.py           compiled loops over its messages
message_block.py     messages laid out for it: bodies, keys, headers
message_reader.py    its messages and delivery reports as rows
client_pool.py       what producers and consumers share: clients, their health, the wakeup
producers.py         producers: batches in, outcomes out
transactions.py      producers with transactions, by confluent-kafka
consumers.py         consumers: members of the run's group, and their threads
consumer_clients.py  the clients of those members; share groups by confluent-kafka
transport.py         the Transport made of all these
"""

from bench_spark.transports.kafka.settings import check_properties, size_limit
from bench_spark.transports.kafka.transport import FILES_OF_CLIENT, KafkaTransport, clients_of

__all__ = ["FILES_OF_CLIENT", "KafkaTransport", "check_properties", "clients_of", "size_limit"]
