"""Kafka, by librdkafka: through confluent-kafka, and past it.

settings.py        librdkafka's properties, of scenario and broker; refuses what it would not take
cluster.py         topics and offsets: create, ask, delete
leftovers.py       what consumer groups have not read
release.py         which Kafka this is
planes.py          which data plane moves the messages
health.py          whether the cluster is lost
quiet_log.py       where librdkafka's log goes
bell.py            lets the library's threads wake the agent
consumers.py       members of the run's group, whatever the plane
group_client.py    what such a member needs of its client
transactional.py   producers with transactions, by confluent-kafka
transport.py       the Transport made of all these

The data plane `confluent`, on confluent-kafka's messages, is the reference:

producers.py, confluent_consumer.py, columns.py

The data plane `fast` calls the C interface of the same library:

librdkafka.py      its functions, by ctypes
obstacles.py       whether it is the library we take it for
native_client.py   a client: configured, asked, put away
addresses.py       what lies at thousands of addresses, at once
messages.py        its messages, as arrays and as columns
partition_lists.py its lists of topic partitions
outbox.py          messages laid out for it (pure)
fast_producers.py, native_consumer.py
"""

from bench_spark.transports.kafka.settings import check_properties, size_limit
from bench_spark.transports.kafka.transport import FILES_OF_CLIENT, KafkaTransport, clients_of

__all__ = ["FILES_OF_CLIENT", "KafkaTransport", "check_properties", "clients_of", "size_limit"]
