"""Kafka, by librdkafka: through confluent-kafka, and past it.

settings.py        librdkafka's properties, of scenario and broker; refuses what it would not take
cluster.py         topics and offsets: create, ask, delete
leftovers.py       what consumer groups have not read
release.py         which Kafka this is
planes.py          which data plane moves the messages
health.py          whether the cluster is lost
quiet_log.py       where librdkafka's log goes
bell.py            lets the library's threads wake the agent
crew.py            what producers and consumers have in common: clients that ring a bell
consumers.py       those of an agent, whatever the plane
group_member.py    one of them: a member of the run's group
group_client.py    what such a member needs of its client
share_client.py    that client where the group is a share group
inbox.py           where receiving threads put messages down
shared_clients.py  producers that share a few clients, whatever the plane
key_choice.py      which key a message has (pure)
common_headers.py  which headers all messages have (pure)
outcome_kinds.py   what a delivery report says (pure)
transactional.py   producers with transactions, by confluent-kafka
transactor.py      one of them: a lane, and the thread that ends its transactions
transport.py       the Transport made of all these

The data plane `confluent`, on confluent-kafka's messages, is the reference:

producers.py, confluent_producer.py, confluent_consumer.py, single_messages.py, columns.py

The data plane `fast` calls the C interface of the same library:

librdkafka.py      its functions, by ctypes
obstacles.py       whether it is the library we take it for
native_client.py   a client: configured, asked, put away
addresses.py       what lies at thousands of addresses, at once
messages.py        its messages, as arrays and as columns
partition_lists.py its lists of topic partitions
outbox.py          messages laid out for it (pure)
header_arguments.py the same for messages with headers (pure)
unsettled.py       heads of messages whose bodies do not hold them (pure)
fast_producers.py, native_producer.py, native_consumer.py
"""

from bench_spark.transports.kafka.settings import check_properties, size_limit
from bench_spark.transports.kafka.transport import FILES_OF_CLIENT, KafkaTransport, clients_of

__all__ = ["FILES_OF_CLIENT", "KafkaTransport", "check_properties", "clients_of", "size_limit"]
