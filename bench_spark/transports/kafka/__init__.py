"""Kafka, by confluent-kafka (librdkafka).

- `settings` makes librdkafka's properties of scenario and broker, and refuses what it would not
  take;
- `leftovers` counts what consumer groups have not read;
- `cluster` creates and deletes topics, and asks for offsets;
- `producers`, `transactional`, `consumers` carry the load, `columns` turns messages into columns;
- `health` decides whether the cluster is lost, `quiet_log` tames librdkafka's log, `bell` lets the
  library's threads wake the agent, `release` finds out which Kafka this is.
"""

from bench_spark.transports.kafka.settings import check_properties
from bench_spark.transports.kafka.transport import FILES_OF_CLIENT, KafkaTransport, clients_of

__all__ = ["FILES_OF_CLIENT", "KafkaTransport", "check_properties", "clients_of"]
